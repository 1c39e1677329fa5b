"""``lantern encode``: prompts through the text encoder, once."""

import argparse
from pathlib import Path

from lantern_jax.commands.options import add_model
from lantern_jax.io.files import check_new_file
from lantern_jax.io.terminal import say


def add(commands) -> None:
    """Adds ``encode`` to a parser's commands."""
    encode = commands.add_parser(
        "encode", help="encode prompts once, to generate from later", allow_abbrev=False
    )
    encode.set_defaults(run=_run)
    add = encode.add_argument
    add("prompts", nargs="+", metavar="PROMPT", help="what to draw")
    add_model(encode)
    add("--out", required=True, metavar="FILE.npz", help="file for the encoded prompts")
    add("--overwrite", action="store_true", help="replace the file if it exists")


def _run(arguments: argparse.Namespace) -> None:
    out = Path(arguments.out)
    check_new_file(out, arguments.overwrite)

    from lantern_jax.commands.report import working
    from lantern_jax.devices.compilation import keep_compiled_programs
    from lantern_jax.pipeline.pipeline import load
    from lantern_jax.text.encoded import save_encoded

    keep_compiled_programs()
    pipeline = load(arguments.model, arguments.dtype)
    with working("encoding"):
        encoded = pipeline.encode(arguments.prompts)
    save_encoded(out, encoded.kind, encoded.prompts, encoded.arrays)
    say(f"wrote {out}")
