"""The public names, and that importing the package is cheap."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import lantern_jax


def test_help_begins_with_what_most_people_need_and_then_names_all():
    first, _, topics = lantern_jax.__doc__.partition("By topic:")
    most = re.findall(r"^    (\w+) ", first, re.MULTILINE)
    assert most == ["load", "Pipeline", "METHODS", "speculative_decode", "target_from_apply"]
    assert len(first.splitlines()) <= 15
    listed = re.findall(r"\w+", " ".join(re.findall(r"^    (.*)", topics, re.MULTILINE)))
    assert sorted(listed) == lantern_jax.__all__


def test_type_checkers_read_the_same_names():
    package = Path(lantern_jax.__file__).parent
    assert (package / "py.typed").is_file()
    stub = ast.parse((package / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [
        (node, alias) for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert all(alias.asname == alias.name for _, alias in imports), "else they are private"
    assert sorted(alias.name for _, alias in imports) == lantern_jax.__all__
    for node, alias in imports:
        value = getattr(lantern_jax, alias.name)
        assert value is getattr(import_module(node.module), alias.name)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'oak'"):
        _ = lantern_jax.oak
    assert set(lantern_jax.__all__) <= set(dir(lantern_jax))


def test_the_core_needs_no_optional_or_training_package():
    """Modules that say so, and the command's help, need no JAX; making a picture imports no extra, nor what only
    training uses."""
    package = Path(lantern_jax.__file__).parent
    files = [file for file in package.rglob("*.py") if "needs no jax" in docstring(file).lower()]
    assert len(files) > 5
    names = [".".join(file.relative_to(package.parent).with_suffix("").parts) for file in files]
    code = (
        "import importlib, sys; import lantern_jax, lantern_jax.apps.commands.main as command;"
        "[*map(importlib.import_module, sys.argv[1:])]; command.main(['generate', '--help']);"
        "assert 'jax' not in sys.modules and 'PIL' not in sys.modules; lantern_jax.load; "
        "extras = 'torch safetensors optax orbax tensorstore ml_collections matplotlib pytest'.split();"
        "print([m for m in extras if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def docstring(file: Path) -> str:
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
