"""The site, with the extra ``docs``: ``sphinx-build -W docs site``.

Its pages are those that GitHub shows; the API is made of the docstrings. Nothing is executed here: the tests execute
the pages' code and the docstrings' examples.
"""

import re

import lantern_jax

project = "lantern_jax"
author = "the authors of lantern_jax"
copyright = author
version = release = lantern_jax.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
nb_execution_mode = "off"
myst_heading_anchors = 4

html_theme = "sphinx_book_theme"
html_title = f"{project} {version}"
# The sidebar has a search box: no second one above it.
html_theme_options = {"show_toc_level": 2, "navbar_persistent": [], "logo": {"text": html_title}}
html_logo = html_favicon = "logo.svg"
html_static_path, html_css_files = ["_static"], ["pictures.css"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_default_options = {"exclude-members": "replace"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# The text of an attribute says its type and shape.
napoleon_attr_annotations = False
napoleon_use_rtype = False
default_role = "literal"


def plain_text(app, what, name, obj, options, lines: list[str]) -> None:
    """Docstrings are plain text with ``code``: stars, bars, words that end in _ and a first word "L." are no markup."""
    markup = re.compile(r"[*|]|(?<=\w)_(?!\w)|(?<=: [A-Z])\.")
    for number, line in enumerate(lines):
        parts = re.split(r"(``.*?``)", line)
        if not line.lstrip().startswith((">>>", "...")):
            parts[::2] = (markup.sub(r"\\\g<0>", part) for part in parts[::2])
        lines[number] = "".join(parts)


def public_arrays(app, what, name, obj, options, signature: str | None, returns: str | None):
    """Arrays are called what users call them."""
    return tuple(text and text.replace("jaxlib._jax.Array", "Array") for text in (signature, returns))


def own_names(app, docname: str, source: list[str]) -> None:
    """The demo's page, which lies beside its files, has a name of its own here."""
    source[0] = source[0].replace("](../lantern_jax/assets/demo/README.md)", "](demo.md)")


def setup(app) -> None:
    app.connect("source-read", own_names)
    app.connect("autodoc-process-signature", public_arrays)
    # Before napoleon, which makes markup of its own.
    app.connect("autodoc-process-docstring", plain_text, priority=400)
