"""Speculative decoding for visual autoregressive image models in JAX, after LANTERN and LANTERN++.

Most uses need only five names:

    load                  opens a model as a Pipeline: load("demo")
    Pipeline              makes pictures from prompts: generate("a foggy forest", method="led")
    METHODS               names the decoding methods, each with a line of help
    speculative_decode    generates tokens with any JAX model; autoregressive_decode does so by plain decoding
    target_from_apply     turns a model that is one function into a target, which both take; check_target tries it

``help(lantern_jax.NAME)`` has an example of each name, and ``docs/architecture.md`` explains how they fit together. A
name is imported from its module on first use, so ``import lantern_jax`` costs nothing. By topic:
"""

import re
from importlib import import_module, resources
from textwrap import fill

# The stub is the one list of names, by topic; type checkers read it too.
_STUB = resources.files(__name__).joinpath("__init__.pyi").read_text("utf-8")
_HOMES = {name: home for home, name in re.findall(r"^from (\S+) import (\w+) as", _STUB, re.MULTILINE)}

for _topic, _lines in re.findall(r"^# (.+)\n((?:from .+\n)+)", _STUB, re.MULTILINE):
    _names = fill(
        ", ".join(re.findall(r" as (\w+)", _lines)), 116, initial_indent="    ", subsequent_indent="    "
    )
    __doc__ = f"{__doc__ or ''}\n{_topic}:\n{_names}\n"

__all__ = sorted(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    value = import_module(f"{home}.{name}") if home == __name__ else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
