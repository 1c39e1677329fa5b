"""``lantern methods``: all methods, and every field of one."""

import argparse
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from lantern_jax.apps.commands.options import Command
from lantern_jax.decoding.choices import COUPLINGS, DRAFTINGS, RULES, Choices, meanings
from lantern_jax.decoding.fields import ByPlatform, allowed_in, written
from lantern_jax.decoding.methods import AUTO, METHODS, Method
from lantern_jax.io import errors

_TABLES = (DRAFTINGS, RULES, COUPLINGS)
_INDENT = " " * 13


def add(commands) -> None:
    """Adds ``methods`` to a parser's commands."""
    command = Command(commands, "methods", "list the methods of decoding, or explain one", _run)
    command.take("name", "NAME", "a method, a rule, a drafting or a coupling", nargs="?")
    command.switch("--markdown", "all of them, as in the documentation's tables")


def _run(arguments: argparse.Namespace) -> None:
    name = arguments.name
    if arguments.markdown:
        print("\n".join(_markdown()))
    elif name is None:
        for title, method in METHODS.items():
            print(textwrap.fill(method.help, 80, initial_indent=f"{title:<13}", subsequent_indent=_INDENT))
    elif name in METHODS:
        print(f"{name}: {METHODS[name].help}")
        for table, part in zip(_TABLES, () if name == AUTO else vars(Method.of(name)).values(), strict=False):
            print(f"\n{table.what} {table.text(part)}")
            print("\n".join(_explained(part)))
    else:
        table = next((table for table in _TABLES if name in table), None)
        if table is None:
            raise errors.unknown("method", name, [*METHODS, *(known for table in _TABLES for known in table)])
        print(f"{table.what} {name}")
        print("\n".join(_explained(table[name]())))


def _explained(record: Any) -> Iterator[str]:
    """Yields the lines on a record: what it is, and its fields."""
    yield textwrap.fill(_summary(type(record)), 80, initial_indent="  ", subsequent_indent="  ")
    said = meanings(type(record))
    for name, declared in allowed_in(type(record)).items():
        yield f"  {name}={_default(getattr(record, name), declared)}  ({declared.metadata['allowed'].words})"
        yield textwrap.fill(_sentence(said[name]), 80, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _summary(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ").replace("``", "")


def _sentence(words: str) -> str:
    """Returns what a docstring says of a field, without its markup, shape and dtype."""
    return re.sub(r"^(int32 )?\[\], |^static, ", "", words.replace("``", "")).rstrip(".") + "."


def _default(value: Any) -> str:
    """Says a field's value, one for each platform if they differ."""
    if isinstance(value, ByPlatform):
        cpu, gpu, tpu = (written(value.on(platform)) for platform in ("cpu", "gpu", "tpu"))
        others = f"{gpu} elsewhere" if gpu == tpu else f"{gpu} on GPUs, {tpu} on TPUs"
        return f"{cpu} on CPUs, {others}"
    return "" if value is None else written(value)


def _markdown() -> Iterator[str]:
    """Yields tables: the methods, and the fields of every drafting, rule and coupling."""
    yield "| method | what it is | drafting | rule | coupling |"
    yield "| --- | --- | --- | --- | --- |"
    for name, method in METHODS.items():
        parts = ("", "", "") if name == AUTO else method[1:]
        yield f"| `{name}` | {method.help} | " + " | ".join(_code(part) for part in parts) + " |"
    for table in _TABLES:
        yield from _fields_of(table)


def _fields_of(table: Choices) -> Iterator[str]:
    yield ""
    yield f"| {table.what} | field | default | range | what it is |"
    yield "| --- | --- | --- | --- | --- |"
    for name in table:
        kind = table[name]
        said, fields = meanings(kind), allowed_in(kind)
        yield f"| `{name}` | | | | {_summary(kind)} |"
        for field, declared in fields.items():
            default = _default(getattr(kind(), field), declared)
            words = _sentence(said[field]).rstrip(".")
            yield f"| | `{field}` | {default} | {declared.metadata['allowed'].words} | {words} |"


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""
