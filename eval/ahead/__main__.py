"""What programs take on devices that are not at hand, according to the devices' own compilers.

    python -m eval.ahead --for v5e,h100 --size chameleon-7b --methods ar jacobi:nodes=18 --batch 1
    python -m eval.ahead --for v5e:2x4 --mesh data=2,model=4 --size chameleon-7b --json ahead.json
    python -m eval.ahead --for v5e --size llamagen-xl --against ahead.json

Nothing runs and no parameters are made: programs are compiled for shapes. TPUs need the extra "ahead", GPUs
``pip install "jax[cuda13]"`` and no driver. See docs/scale.md.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import write_file

METHODS = ("ar", "jacobi:nodes=18", "eagle")


def main(argv: Sequence[str] | None = None) -> None:
    """Compiles, prints a table and writes the rows."""
    parser = Parser(prog="python -m eval.ahead", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add(
        "--for",
        dest="devices",
        required=True,
        metavar="A,B",
        help="devices or slices: v5e, v5e:4x4, h100, h100:8",
    )
    add("--mesh", metavar="data=D,model=M", help="over each slice (default: a whole model on every device)")
    add("--size", default="demo", metavar="NAME", help="demo, or a published size such as llamagen-xl")
    add(
        "--methods",
        nargs="+",
        default=METHODS,
        metavar="A",
        help=f"as `lantern bench` takes them (default: {' '.join(METHODS)})",
    )
    add("--batch", default="1", metavar="B,...", help="pictures decoded together (default: 1)")
    add("--programs", default="start,advance", metavar="LIST", help="also refill, regroup, draw")
    add("--dtype", help="of parameters and products (default: what the device has, bfloat16 or float32)")
    add("--search-tilings", action="store_true", help="have the compiler of a GPU try every tiling")
    add("--json", type=Path, metavar="FILE", help="write the rows")
    add("--against", type=Path, metavar="FILE", help="show what differs from a file of rows")
    _survey(parser.parse_args(argv))


def _survey(arguments: argparse.Namespace) -> None:
    from eval.ahead.rows import changes, read_ahead_rows, to_json
    from eval.ahead.slices import slice_of
    from eval.ahead.survey import survey
    from eval.ahead.tables import ahead_table, changes_table, parts_of_rounds
    from lantern_jax.apps.commands.report import working
    from lantern_jax.apps.measuring.sweep import check_methods, parse_list
    from lantern_jax.apps.terminal.console import Console
    from lantern_jax.devices.compilation import search_tilings

    if arguments.search_tilings:
        search_tilings()
    slices = [slice_of(name, arguments.mesh) for name in arguments.devices.split(",")]
    old = [] if arguments.against is None else read_ahead_rows(arguments.against)
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise LanternError(f"--json {arguments.json} is in no folder: make it first")
    methods, batches = check_methods(arguments.methods), parse_list("batch", arguments.batch)
    rows = []
    with working("compiling") as tell:
        for row in survey(
            slices, arguments.size, methods, batches, arguments.programs.split(","), arguments.dtype, tell
        ):
            rows.append(row)
            if arguments.json is not None:
                write_file(arguments.json, to_json(rows))
    console = Console()
    console = console if console.is_terminal else Console(width=200)
    console.print(ahead_table(rows))
    if (parts := parts_of_rounds(rows)) is not None:
        console.print(parts)
    if arguments.against is not None:
        pairs = changes(rows, old)
        console.print(changes_table(pairs, str(arguments.against)) if pairs else f"as in {arguments.against}")


if __name__ == "__main__":
    run_script(main)
