"""``lantern methods``: all methods, and every field of one."""

import argparse
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from lantern_jax.apps.commands.options import Command
from lantern_jax.decoding.choices import COUPLINGS, DRAFTINGS, RULES, meanings
from lantern_jax.decoding.fields import Allowed, ByPlatform, allowed_in, written
from lantern_jax.decoding.methods import AUTO, METHODS, Method
from lantern_jax.io import errors
from lantern_jax.settings.settings import Settings

_TABLES = (DRAFTINGS, RULES, COUPLINGS)


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
            print(f"{title:<13}{method.help}")
    elif name in METHODS:
        print(f"{name}: {METHODS[name].help}")
        if METHODS[name].papers:
            print(f"arXiv {METHODS[name].papers}")
        for table, part in zip(_TABLES, () if name == AUTO else vars(Method.of(name)).values(), strict=False):
            print(f"\n{table.what} {table.text(part)}", *_explained(part), sep="\n")
    else:
        table = next((table for table in _TABLES if name in table), None)
        if table is None:
            names = dict.fromkeys([*METHODS, *(known for table in _TABLES for known in table)])
            raise errors.unknown("method", name, names)
        print(f"{table.what} {name}", *_explained(table[name]()), sep="\n")


def _explained(record: Any) -> Iterator[str]:
    """Yields the lines on a record: what it is, and its fields with their values on this machine."""
    import jax

    kind = type(record)
    yield _filled(_summary(kind), 2)
    here = record.settled(jax.default_backend(), {}) if kind in DRAFTINGS.values() else record
    said = meanings(kind)
    for name, declared in allowed_in(kind).items():
        value, given = getattr(here, name), _value(getattr(record, name), declared)
        notes = [_range(declared.metadata["allowed"], _meaning(said[name]))]
        if isinstance(given, ByPlatform) and value is not None:
            notes.append(_by_platform(given))
        if declared.metadata["fitted"]:
            notes.append("a checkpoint may have its own")
        yield _filled(f"{name}{'' if value is None else f'={written(value)}'} ({'; '.join(notes)})", 2, 8)
        yield _filled(f"{_meaning(said[name])}.", 6)


def _filled(text: str, indent: int, more: int = 0) -> str:
    """Returns a text in lines of 80 columns, those after the first with ``more`` indentation."""
    return textwrap.fill(
        text, 80, initial_indent=" " * indent, subsequent_indent=" " * (indent + more), break_on_hyphens=False
    )


def _summary(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ").replace("``", "")


def _meaning(words: str) -> str:
    """Returns what a docstring says of a field, without its markup and shape, and without where it is fitted."""
    return re.sub(r"^(int32 )?\[\], |^static, |; fitted.*$", "", words.replace("``", "")).rstrip(".")


def _value(value: Any, declared: dataclasses.Field) -> Any:
    """Returns what a field holds if it is not given; None where that depends on others."""
    return declared.metadata["otherwise"] if value is None else value


def _range(allowed: Allowed, meaning: str) -> str:
    """Returns what a field may hold, with what a special number does if its meaning does not say so."""
    note = getattr(allowed, "note", "")
    return allowed.words if note in meaning else f"{allowed.words}; {note}"


def _by_platform(value: ByPlatform) -> str:
    cpu, gpu, tpu = (written(value.on(platform)) for platform in ByPlatform._fields)
    return f"{cpu} on CPUs, {gpu} elsewhere" if gpu == tpu else f"{cpu} on CPUs, {gpu} on GPUs, {tpu} on TPUs"


def _markdown() -> Iterator[str]:
    """Yields sections: the methods, every drafting, rule and coupling with its fields, and the sampling."""
    yield "## Methods\n\n| method | what it is | drafting | rule | coupling |\n| --- | --- | --- | --- | --- |"
    for name, method in METHODS.items():
        parts = ["`" + part.replace("|", "\\|") + "`" for part in method.parts]
        parts[0] = "the fastest" if name == AUTO else parts[0]
        papers = ", ".join(
            f"[{one}](https://arxiv.org/abs/{one})" for one in method.papers.split(", ") if one
        )
        yield f"| `{name}` | {method.help}{papers and f' ({papers})'} | {' | '.join(parts)} |"
    for table in _TABLES:
        yield f"\n## {table.what.capitalize()}s"
        for name, kind in table.items():
            yield f"\n`{name}`: {_summary(kind)}"
            yield from _fields_table(kind)
    yield "\n## Sampling and batches"
    yield from _fields_table(Settings)


def _fields_table(kind: type) -> Iterator[str]:
    said, fields = meanings(kind), allowed_in(kind)
    if fields:
        yield "\n| field | default | range | what it is |\n| --- | --- | --- | --- |"
    for name, declared in fields.items():
        value, meaning = _value(declared.default, declared), _meaning(said[name])
        shown = _by_platform(value) if isinstance(value, ByPlatform) else written(value)
        default = f"the checkpoint's, else {shown}" if declared.metadata["fitted"] else shown
        yield f"| `{name}` | {default} | {_range(declared.metadata['allowed'], meaning)} | {meaning} |"
