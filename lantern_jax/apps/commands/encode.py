"""``lantern encode``: prompts through the text encoder, once."""

import argparse
from pathlib import Path

from lantern_jax.apps.commands.options import Command, open_pipeline
from lantern_jax.apps.terminal.terminal import say
from lantern_jax.io.files import check_new_file


def add(commands) -> None:
    """Adds ``encode`` to a parser's commands."""
    about, shared = (
        "encode prompts once, to generate from later",
        ("--model", "--dtype", "--negative", "--size"),
    )
    encode = Command(commands, "encode", about, _run, *shared)
    encode.take("prompts", "PROMPT", "what to draw", nargs="+")
    encode.take("--out", "FILE.npz", "file for the encoded prompts", required=True)
    encode.shared("--strict-words", "--overwrite")


def _run(arguments: argparse.Namespace) -> None:
    from lantern_jax.apps.commands.report import working
    from lantern_jax.text.encoded import check_ending, save_encoded

    out = Path(arguments.out)
    check_ending(out)
    check_new_file(out, arguments.overwrite)
    pipeline = open_pipeline(arguments)
    with working("encoding"):
        encoded = pipeline.encode(arguments.prompts, arguments.negative)
    save_encoded(out, encoded.kind, encoded.prompts, encoded.arrays)
    say(f"wrote {out}")
