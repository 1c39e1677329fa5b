"""``lantern convert``: published files to a checkpoint directory. Each format says which files it takes."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from lantern_jax.apps.commands.options import DTYPES, Command
from lantern_jax.apps.terminal.locks import sole
from lantern_jax.apps.terminal.terminal import say
from lantern_jax.families.registry import Format
from lantern_jax.io.errors import LanternError
from lantern_jax.tensors.hub import download


def add(commands, chosen: bool = True) -> None:
    """Adds ``convert`` to a parser's commands, with its formats, which need JAX, if it is the ``chosen`` one."""
    convert = commands.add_parser("convert", help="convert published checkpoints")
    if not chosen:
        return

    from lantern_jax.apps.convert.formats import formats

    parsers = convert.add_subparsers(title="formats", metavar="FORMAT", required=True)
    for name, kind in formats().items():
        command = Command(parsers, name, kind.help, partial(_run, kind))
        take = command.take
        for file in kind.files:
            take(f"--{file.option}", "PATH", file.help)
        for choice, (meaning, words) in kind.choices.items():
            how = {"default": words[0], "choices": words} if words else {}
            take(f"--{choice}", None if words else "NAME", meaning, **how)
        take("--out", "DIR", "new folder for the checkpoint", required=True)
        take("--dtype", None, "of stored parameters", "bfloat16", choices=DTYPES)
        hub = "repository of the Hugging Face hub that holds the files that are not here"
        take("--from-hub", "REPO", hub)
        take("--revision", "NAME", "branch, tag or commit of the repository")
        command.shared("--overwrite")


def _run(kind: Format, arguments: argparse.Namespace) -> None:
    given = {file.argument: getattr(arguments, file.argument) for file in kind.files}
    remote = {} if arguments.from_hub is None else _remote(kind, given, arguments.from_hub)
    if arguments.from_hub is None and arguments.revision is not None:
        raise LanternError("--revision is that of a repository: give --from-hub too")
    # Everything that can be refused without fetching is refused first.
    for file in kind.files:
        path = given[file.argument]
        if file.argument in remote:
            continue
        if path is None and file.required:
            raise LanternError(f"--{file.option} is missing: give {file.help}")
        inline = file.argument == "config" and str(path).startswith("{")
        if path is not None and not inline and not Path(path).exists():
            raise LanternError(f"--{file.option} {path} is not a file or a folder: give {file.help}")

    from lantern_jax.apps.commands.report import show_drawn, working
    from lantern_jax.checkpoints.store import check_new, load_shapes

    out = check_new(arguments.out, arguments.overwrite)
    with sole(out):
        if remote:
            given |= _fetched(remote, arguments.from_hub, arguments.revision)
        given |= {choice: getattr(arguments, choice) for choice in kind.choices}
        with working("converting") as tell:
            kind.function(
                **given, out=out, dtype=arguments.dtype, overwrite=arguments.overwrite,
                progress=lambda done, total: tell(f"writing, {done / max(total, 1):.0%}"),
            )  # fmt: skip
        say(f"wrote {out}")
        show_drawn(load_shapes(out))


def _remote(kind: Format, given: dict[str, str | None], repo: str) -> dict[str, str]:
    """Returns the files that are not on this machine, by argument; "." is the whole repository."""
    named = {file.argument: "." for file in kind.files if file.repository and given[file.argument] is None}
    for name, path in given.items():
        local = path is None or name in ("checkpoint", "config") or (path != "." and Path(path).exists())
        named |= {} if local else {name: path}
    if not named:
        raise LanternError(f"--from-hub {repo}: all the files given are on this machine; leave it out")
    return named


def _fetched(remote: dict[str, str], repo: str, revision: str | None) -> dict[str, str]:
    """Fetches files from a repository; returns where they are."""
    from lantern_jax.apps.convert.repository import list_files

    files = list_files(repo, revision)
    wanted = {path: _wanted(files, path, repo) for path in remote.values()}
    missing = [path for path, names in wanted.items() if not names]
    if missing:
        raise LanternError(f"{', '.join(missing)}: neither on this machine nor in {repo}")
    folder = download(repo, sorted({name for names in wanted.values() for name in names}), revision)
    return {name: str(folder / path) for name, path in remote.items()}


def _wanted(files: Sequence[str], path: str, repo: str) -> list[str]:
    """Chooses a repository's files for one option; none if it has no such file or folder.

    They come with their shards and the ``config.json`` or ``tokenizer_config.json`` beside them. A folder gives the
    weights that ``open_tensors`` would read there, so only one format if there are two.
    """
    from lantern_jax.apps.foreign.tensor_files import choose_weights

    place = PurePosixPath(path)
    folder, name = (place.parent, place.name) if path in files else (place, "")
    beside = {file.name for file in map(PurePosixPath, files) if file.parent == folder}
    if not beside:
        return []
    name = name or choose_weights(beside, PurePosixPath(repo) / folder)
    chosen = {name, "tokenizer_config.json" if name == "tokenizer.json" else "config.json"}
    if name.endswith(".index.json"):
        suffix = Path(name.removesuffix(".index.json")).suffix
        chosen |= {file for file in beside if Path(file).suffix == suffix}
    return [str(folder / file) for file in beside & chosen]
