"""The ``lantern`` command: generate, info, convert.

Errors are one line on stderr and exit status 2. Parts that take long to import are imported once the arguments
are known to be right.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import NoReturn

from lantern_jax.outputs import DEFAULT_OUT, check_outputs, check_writable, plan_pictures

_KNOBS = (
    "guidance", "temperature", "top_k", "top_p", "tree", "rule", "k", "delta", "lam", "coupling", "path", "batch",
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(message)
        raise SystemExit(2)


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit status: 0, 2 after an error, 130 when interrupted."""
    try:
        arguments = _parser().parse_args(argv)
        arguments.run(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    except (ValueError, OSError, ImportError) as error:
        return _fail(str(error))
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _fail("the device has too little memory for this: give a smaller --batch or --tree")
    except KeyboardInterrupt:
        print("lantern: interrupted", file=sys.stderr)
        return 130
    return 0


def _fail(message: str) -> int:
    print(f"lantern: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="lantern", description="Pictures by speculative decoding.", allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_generate(commands)
    info = commands.add_parser("info", help="describe a checkpoint", allow_abbrev=False)
    info.add_argument(
        "model", nargs="?", default="demo", metavar="DIR", help="checkpoint (default: the demo)"
    )
    info.set_defaults(run=_info)
    convert = commands.add_parser("convert", help="convert published checkpoints", allow_abbrev=False)
    formats = convert.add_subparsers(title="formats", metavar="FORMAT", required=True)
    llamagen = formats.add_parser(
        "llamagen", help="LlamaGen GPT, VQ tokenizer and drafter", allow_abbrev=False
    )
    llamagen.add_argument("--gpt", required=True, metavar="FILE", help="the GPT, .pt or .safetensors")
    llamagen.add_argument("--vq", metavar="FILE", help="the VQ tokenizer, .pt or .safetensors")
    llamagen.add_argument("--drafter", metavar="FILE", help="the drafter, .pt or .safetensors")
    llamagen.add_argument("--config", metavar="FILE", help="JSON with what shapes do not tell")
    llamagen.add_argument("--out", required=True, metavar="DIR", help="new folder for the checkpoint")
    llamagen.set_defaults(run=_convert_llamagen)
    return parser


def _add_generate(commands) -> None:
    generate = commands.add_parser("generate", help="make pictures from prompts", allow_abbrev=False)
    generate.set_defaults(run=_generate)
    add = generate.add_argument
    add(
        "prompts",
        nargs="+",
        metavar="PROMPT",
        help="what to draw; a class number for class-conditional models",
    )
    add("--model", default="demo", metavar="demo|DIR", help="checkpoint (default: demo)")
    add("--num", type=int, default=1, metavar="N", help="pictures a prompt (default: 1)")
    add("--seed", type=int, default=0, metavar="S", help="random seed (default: 0)")
    add("--guidance", type=float, metavar="F", help="classifier-free guidance scale; 1 is off")
    add("--temperature", type=float, metavar="F", help="0 is greedy")
    add("--top-k", type=int, metavar="K", help="sample from the K most probable codes; 0 is off")
    add("--top-p", type=float, metavar="P", help="sample from the most probable codes of mass P; 1 is off")
    add(
        "--tree", metavar="NAME|FILE|none", help="draft tree: a name, a JSON file of paths, or plain decoding"
    )
    add("--rule", choices=("strict", "lantern", "lantern++"), help="acceptance rule")
    add("--k", type=int, metavar="K", help="codebook neighbours of a relaxed rule")
    add("--delta", type=float, metavar="D", help="bound of lantern, in [0, 1)")
    add("--lam", type=float, metavar="L", help="bound of lantern++, >= 1")
    add("--coupling", choices=("gumbel", "rejection"), help="how drafts and target share randomness")
    add("--path", choices=("longest", "exact_first"), help="which accepted path is taken")
    add("--batch", type=int, metavar="B", help="pictures decoded at once")
    add(
        "--out",
        default=DEFAULT_OUT,
        metavar="FILE.png|DIR/",
        help=f"where pictures go (default: {DEFAULT_OUT})",
    )
    add(
        "--compare",
        action="store_true",
        help="also decode plainly; both pictures side by side, and the speed-up",
    )
    add("--show-acceptance", action="store_true", help="draw over the picture what each round accepted")
    add("--stats", metavar="FILE", help="write the statistics as JSON")
    add("--overwrite", action="store_true", help="replace files that exist")


def _generate(arguments: argparse.Namespace) -> None:
    knobs = {name: getattr(arguments, name) for name in _KNOBS}
    stats = None if arguments.stats is None else Path(arguments.stats)
    if arguments.num < 1:
        raise ValueError(f"--num {arguments.num} is not valid: give a whole number >= 1")
    plan = plan_pictures(
        arguments.out, [prompt for prompt in arguments.prompts for _ in range(arguments.num)]
    )
    check_outputs(plan, [] if stats is None else [stats], arguments.overwrite)

    from lantern_jax.pipeline import load
    from lantern_jax.settings import check_seed, resolve_settings

    # What does not depend on the checkpoint is wrong before a large one is read.
    check_seed(arguments.seed)
    resolve_settings(knobs, {}, platform="cpu", vocab_size=sys.maxsize, has_drafter=True)
    pipeline = load(arguments.model)
    pipeline.check(arguments.prompts, num=arguments.num, seed=arguments.seed, **knobs)
    if not pipeline.draws:
        raise ValueError(f"{arguments.model} has no VQ tokenizer to draw with: convert it again with --vq")

    from lantern_jax.report import picture_files, show_statistics, working

    with working(f"decoding {len(arguments.prompts) * arguments.num} picture(s); a first run also compiles"):
        generation = pipeline.generate(
            arguments.prompts, num=arguments.num, seed=arguments.seed, compare=arguments.compare, **knobs
        )
    files = picture_files(plan, generation, arguments.num, arguments.show_acceptance)
    if stats is not None:
        files[stats] = (json.dumps(generation.statistics.to_json(), indent=1) + "\n").encode()
    _write(plan, files)
    show_statistics(generation, plan.folder if plan.folder is not None else plan.files[0])


def _write(plan, files) -> None:
    from lantern_jax.pictures import write_files

    made = plan.folder is not None and not plan.folder.exists()
    if made:
        plan.folder.mkdir()
    try:
        write_files(files)
    except BaseException:
        if made:
            plan.folder.rmdir()
        raise


def _info(arguments: argparse.Namespace) -> None:
    from lantern_jax.checkpoints.store import demo_directory, describe, load
    from lantern_jax.report import show_description

    show_description(describe(load(demo_directory() if arguments.model == "demo" else Path(arguments.model))))


def _convert_llamagen(arguments: argparse.Namespace) -> None:
    given = {name: getattr(arguments, name) for name in ("gpt", "vq", "drafter", "config")}
    files = {name: None if value is None else Path(value) for name, value in given.items()}
    for name, file in files.items():
        if file is not None and not file.is_file():
            raise ValueError(f"--{name} {file} is not a file: name an existing one")
    out = Path(arguments.out)
    if out.exists():
        raise ValueError(f"{out} exists: name a new folder")
    check_writable(out.absolute().parent)

    from lantern_jax.checkpoints.convert import convert_llamagen

    convert_llamagen(**files, out=out)
    print(f"wrote {out}")


if __name__ == "__main__":
    sys.exit(main())
