"""The ``lantern`` command: generate, encode, info, convert.

Errors are one line on stderr and exit status 2. Parts that take long to import are imported once the arguments
are known to be right.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import NoReturn

from lantern_jax.convert_command import DTYPES, add_convert
from lantern_jax.outputs import DEFAULT_OUT, check_new_file, check_outputs, plan_pictures

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
    _add_encode(commands)
    info = commands.add_parser("info", help="describe a checkpoint", allow_abbrev=False)
    info.add_argument(
        "model", nargs="?", default="demo", metavar="DIR", help="checkpoint (default: the demo)"
    )
    info.set_defaults(run=_info)
    add_convert(commands)
    return parser


def _add_generate(commands) -> None:
    generate = commands.add_parser("generate", help="make pictures from prompts", allow_abbrev=False)
    generate.set_defaults(run=_generate)
    add = generate.add_argument
    add(
        "prompts",
        nargs="*",
        metavar="PROMPT",
        help="what to draw; a class number or ImageNet name for class-conditional models",
    )
    add("--prompts", dest="encoded", metavar="FILE.npz", help="prompts that `lantern encode` wrote, instead")
    _add_model(add)
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


def _add_model(add) -> None:
    add("--model", default="demo", metavar="demo|DIR", help="checkpoint (default: demo)")
    add(
        "--dtype", choices=DTYPES, help="of parameters and products (default: float32 on CPUs, else bfloat16)"
    )


def _add_encode(commands) -> None:
    encode = commands.add_parser(
        "encode", help="encode prompts once, to generate from later", allow_abbrev=False
    )
    encode.set_defaults(run=_encode)
    add = encode.add_argument
    add("prompts", nargs="+", metavar="PROMPT", help="what to draw")
    _add_model(add)
    add("--out", required=True, metavar="FILE.npz", help="file for the encoded prompts")
    add("--overwrite", action="store_true", help="replace the file if it exists")


def _encode(arguments: argparse.Namespace) -> None:
    out = Path(arguments.out)
    check_new_file(out, arguments.overwrite)

    from lantern_jax.checkpoints.store import load as load_checkpoint
    from lantern_jax.checkpoints.store import model_directory
    from lantern_jax.pipeline import parameter_dtype
    from lantern_jax.prompting import prompt_encoder
    from lantern_jax.report import working
    from lantern_jax.text.encoded import save_encoded

    encoder = prompt_encoder(load_checkpoint(model_directory(arguments.model), abstract=True))
    encoder.check(arguments.prompts)
    with working("encoding"):
        conditioning = encoder.encode(arguments.prompts, parameter_dtype(arguments.dtype))
    encoded = encoder.to_encoded(arguments.prompts, conditioning)
    save_encoded(out, encoded.kind, encoded.prompts, encoded.arrays)
    print(f"wrote {out}")


def _generate(arguments: argparse.Namespace) -> None:
    knobs = {name: getattr(arguments, name) for name in _KNOBS}
    stats = None if arguments.stats is None else Path(arguments.stats)
    if arguments.num < 1:
        raise ValueError(f"--num {arguments.num} is not valid: give a whole number >= 1")
    if bool(arguments.prompts) == (arguments.encoded is not None):
        raise ValueError("give prompts, or --prompts FILE.npz with encoded ones: one of the two")
    encoded = None
    if arguments.encoded is not None:
        from lantern_jax.text.encoded import load_encoded

        encoded = load_encoded(arguments.encoded)
    prompts = arguments.prompts if encoded is None else encoded.prompts
    plan = plan_pictures(arguments.out, [prompt for prompt in prompts for _ in range(arguments.num)])
    check_outputs(plan, [] if stats is None else [stats], arguments.overwrite)

    from lantern_jax.pipeline import load
    from lantern_jax.settings import check_seed, resolve_settings

    # What does not depend on the checkpoint is wrong before a large one is read.
    check_seed(arguments.seed)
    resolve_settings(knobs, {}, platform="cpu", vocab_size=sys.maxsize, has_drafter=True)
    pipeline = load(arguments.model, arguments.dtype)
    pipeline.check(prompts if encoded is None else encoded, num=arguments.num, seed=arguments.seed, **knobs)
    if not pipeline.draws:
        raise ValueError(f"{arguments.model} has no VQ tokenizer to draw with: convert it again with one")

    from lantern_jax.report import picture_files, show_statistics, working

    call = {"num": arguments.num, "seed": arguments.seed, "compare": arguments.compare, **knobs}
    with working(f"decoding {len(prompts) * arguments.num} picture(s); a first run also compiles"):
        generation = pipeline.generate_from(pipeline.encode(prompts) if encoded is None else encoded, **call)
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
    from lantern_jax.checkpoints.store import describe, load, model_directory
    from lantern_jax.report import show_description

    show_description(describe(load(model_directory(arguments.model), abstract=True)))


if __name__ == "__main__":
    sys.exit(main())
