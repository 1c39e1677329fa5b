"""Draws a picture by speculative decoding, in a script of your own: load, guess and check, draw, save.

    python examples/minimal.py FOLDER LABEL [LABEL ...] --out picture.png

FOLDER is a class-conditional LlamaGen as ``lantern convert llamagen`` writes it, or the demo in
``lantern_jax/assets/demo``. A LlamaGen takes one label, an ImageNet class; the demo takes eight: a time of day (0 to
3), a terrain (5 to 10), weather (12 to 16), water (18 to 22), a season (24 to 27), a sight (29 to 33), no boats or
boats (35, 36) and a style (38 to 42).

It needs the package ``safetensors`` besides the library. Nothing is hidden: copy it, and put in your own model, your
own guesses or your own loop.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image
from safetensors.numpy import load_file

import lantern_jax
from lantern_jax.drafters.eagle import eagle_drafter
from lantern_jax.drafters.sequence import DrafterConfig
from lantern_jax.families.llamagen.model import LlamaGenConfig
from lantern_jax.families.registry import target_of
from lantern_jax.models.vq import VQConfig, VQModel


def load(folder: Path) -> tuple[dict, dict]:
    """Reads a model's folder: its config, and its arrays as nested dicts of float32.

    A name in a file is the path of an array, as in "target.params.head.kernel". Large models have several files.
    """
    config, arrays = json.loads((folder / "config.json").read_text()), {}
    if config["family"] != "llamagen" or not config["target"]["num_labels"]:
        raise SystemExit(f"{folder} is no class-conditional LlamaGen: see lantern_jax.load for others")
    stored = {}
    for file in sorted(folder.glob("model*.safetensors")):
        stored |= load_file(file)
    # What a drafter shares with the target is stored only once.
    stored |= {name: stored[source] for name, source in config.get("shared", {}).items()}
    for name, array in stored.items():
        *parents, last = name.split(".")
        branch = arrays
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = jnp.asarray(array, jnp.int32 if name == "neighbours" else jnp.float32)
    return config, arrays


def fields(values: dict) -> dict:
    """Returns the fields of a config's record: what JSON has as lists are tuples there."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def guesses(config: dict, arrays: dict) -> tuple[lantern_jax.Drafting, dict | None]:
    """Returns where guesses come from: an EAGLE drafter on a tree, or, without one, the target's own last pass."""
    sizes = config["drafters"].get("eagle")
    if sizes is None:
        return lantern_jax.draftings.jacobi(config["target"]["vocab_size"], window=8), None
    drafter = eagle_drafter(DrafterConfig(**fields(sizes)))
    # Each [ranks] is a node: [0] the best guess, [1] the second, [0, 0] the best one after the best.
    tree = lantern_jax.DraftTree.from_paths([[0], [1], [0, 0], [0, 1], [0, 0, 0]])
    # A drafter reads its logits through the target's own head.
    head = arrays["target"]["params"]["head"]["kernel"]
    return lantern_jax.draftings.eagle(drafter, tree), {"drafter": arrays["drafters"]["eagle"], "head": head}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("labels", type=int, nargs="+", metavar="label")
    parser.add_argument("--out", type=Path, default=Path("picture.png"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guidance", type=float, help="default: the model's own, or 2")
    given = parser.parse_args()

    config, arrays = load(given.folder)
    target = target_of(LlamaGenConfig(**fields(config["target"])))
    drafting, drafting_params = guesses(config, arrays)

    # One sequence: its label(s), and a key that determines all its tokens: that of `lantern generate`'s first picture.
    model = (target, arrays["target"], jnp.asarray([given.labels], jnp.int32))
    keys = jax.random.fold_in(jax.random.key(given.seed), 0)[None]
    usual = {"guidance": 2.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0} | config.get("defaults", {})
    options = {
        "guidance": jnp.full(1, usual["guidance"] if given.guidance is None else given.guidance),
        "sampling": lantern_jax.SamplingParams.create(
            **{name: usual[name] for name in ("temperature", "top_k", "top_p")}
        ),
    }

    def speculative():
        return lantern_jax.speculative_decode(
            *model, keys, drafting=drafting, drafting_params=drafting_params, rule="strict", **options
        )

    def plain():
        return lantern_jax.autoregressive_decode(*model, keys, **options)

    seconds, decoded = {}, {}
    for decode in (plain, speculative):
        jax.block_until_ready(decode())  # Compiles.
        start = time.perf_counter()
        decoded[decode] = jax.block_until_ready(decode())
        seconds[decode] = time.perf_counter() - start
    tokens, passes = decoded[speculative].tokens, int(decoded[speculative].rounds[0])

    # Tokens are codes of the VQ tokenizer, row by row; its decoder turns them into pixels from -1 to 1.
    tokenizer = VQModel(VQConfig(**fields(config["tokenizer"])))
    draw = jax.jit(lambda params, codes: tokenizer.apply(params, codes, method="decode"))
    pixels = draw(arrays["tokenizer"], tokens)
    pixels = np.asarray(jnp.clip((pixels[0] + 1) * 127.5, 0, 255)).round().astype(np.uint8)
    Image.fromarray(pixels).save(given.out)

    print(f"{given.out}: {tokens.size} tokens in {passes} passes, {(tokens.size - 1) / passes:.2f} per pass")
    print(f"{seconds[plain] / seconds[speculative]:.2f} times as fast as one token per pass, and", end=" ")
    print("the same tokens" if np.array_equal(tokens, decoded[plain].tokens) else "OTHER TOKENS")


if __name__ == "__main__":
    main()
