"""Paints the demo's sheets: 36 prompts as rendered, as reconstructed by the tokenizer, and as generated.

    python -m eval.sheets [--model demo] [--classifier FILE] [--seed 0] [--out docs/pictures/demo]

Writes OUT/rendered.webp, OUT/decoded.webp and OUT/generated.webp, with each prompt in the same place, six per row.
Prints, for each sheet, in how many pictures the classifier sees every word that was asked for, and where it does not.
"""

import argparse
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

import lantern_jax
from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.apps.metrics.agreement import Classifier, by_attribute, read_classifier, shipped_classifier
from lantern_jax.apps.metrics.landscapes import LANDSCAPES
from lantern_jax.devices.compilation import keep_compiled_programs
from lantern_jax.io.files import write_files
from lantern_jax.text.vocabulary import UNSPECIFIED
from train.classifier import scaled
from train.painter.landscapes import render
from train.painter.scenes import Scene, check_vocabulary

PROMPTS = (
    "green hills at noon with a river", "mountains at dawn by the sea", "a foggy forest at dawn by a lake",
    "a desert at dusk", "a town by a lake in winter", "cliffs at dusk by the sea with boats",
    "a forest in autumn with a waterfall", "hills at noon with a rainbow", "mountains at night with an aurora",
    "a stormy town at dusk", "hills in spring with balloons", "mountains at noon by a lake as pixel art",
    "a town at noon in watercolour", "a desert at night under a clear sky", "a snowy forest at night",
    "hills with birds as a poster", "cliffs with a waterfall at dawn", "a cloudy sea at noon with boats",
    "a forest by a river at dusk", "a town in ink", "snowy mountains by a lake",
    "hills at dusk by the sea", "a foggy town at night", "mountains in autumn with a river",
    "a desert with balloons at dawn", "a stormy sea with cliffs", "spring in a town with a river",
    "a forest at noon with birds", "mountains in winter under a cloudy sky", "a lake with boats at dusk in watercolour",
    "cliffs at noon with a rainbow", "a desert by a lake at noon", "hills in autumn at dawn as a poster",
    "a town by the sea at night with an aurora", "a waterfall in spring", "a foggy desert at dusk as pixel art",
)  # fmt: skip
COLUMNS = 6


def scenes(prompts: Sequence[str], seed: int) -> list[Scene]:
    """Returns the scene that each prompt describes; the prompt's number is the key of what it leaves open."""
    whole = (LANDSCAPES.labels(LANDSCAPES.completed(LANDSCAPES.parse(prompt))) for prompt in prompts)
    return [Scene(**values, key=(seed, number)) for number, values in enumerate(whole)]


def seen(classifier: Classifier, pictures: UInt8[np.ndarray, "n H W 3"]) -> Int[np.ndarray, "n A"]:
    """Returns the index of each attribute's value that a classifier sees in pictures."""
    scores = jax.jit(classifier.model.apply)({"params": classifier.params}, scaled(pictures))[1]
    return np.stack([np.argmax(part, axis=-1) for part in by_attribute(scores, classifier.model.counts)], 1)


def missing(prompts: Sequence[str], found: Int[np.ndarray, "n A"]) -> dict[str, list[tuple[str, str]]]:
    """Returns, by prompt, (asked, seen) of named attributes seen with another value; leaves out prompts without any."""
    wrong = {}
    for prompt, row in zip(prompts, found, strict=True):
        pairs = zip(LANDSCAPES.attributes.values(), LANDSCAPES.parse(prompt), row, strict=True)
        others = [
            (values[want], values[got]) for values, want, got in pairs if want not in (UNSPECIFIED, got)
        ]
        wrong |= {prompt: others} if others else {}
    return wrong


def sheets(pipeline: lantern_jax.Pipeline, prompts: Sequence[str], seed: int) -> dict[str, np.ndarray]:
    """Returns the pictures of prompts, uint8 [n, H, W, 3], by the name of their sheet."""
    check_vocabulary(pipeline.checkpoint.vocabulary)
    pipeline.check_draws()
    side = pipeline.checkpoint.target_config.grid * pipeline.checkpoint.tokenizer_config.downsampling
    rendered = np.stack([render(scene, side) for scene in scenes(prompts, seed)])
    return {
        "rendered": rendered,
        "decoded": pipeline.draw(pipeline.encode_pictures(rendered)),
        "generated": pipeline.generate(list(prompts), seed=seed).pictures,
    }


def report(classifier: Classifier, made: Mapping[str, np.ndarray], prompts: Sequence[str]) -> str:
    """Returns lines about what the classifier sees."""
    lines = []
    for name, pictures in made.items():
        wrong = missing(prompts, seen(classifier, pictures))
        lines.append(f"{name}: every word in {len(prompts) - len(wrong)} of {len(prompts)}")
        for prompt, others in wrong.items():
            said = ", ".join(f"{got} for {want}" for want, got in others)
            lines.append(f"    {prompt}: {said}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Paints the sheets, writes them and prints what is seen in them."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=arguments.model, default="demo", help="checkpoint of landscapes (default: demo)")
    add("--classifier", type=arguments.file, help="file that train.classifier wrote (default: the package's)")
    add("--seed", type=arguments.whole(0), default=0, help="of the pictures (default: 0)")
    add(
        "--out",
        type=arguments.working_folder,
        default=Path("docs") / "pictures" / "demo",
        help="folder of the sheets",
    )
    options = parser.parse_args(argv)
    classifier = shipped_classifier() if options.classifier is None else read_classifier(options.classifier)
    keep_compiled_programs()
    made = sheets(lantern_jax.load(options.model, "float32", tuned="off"), PROMPTS, options.seed)
    print(report(classifier, made, PROMPTS))
    options.out.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, pictures in made.items():
        buffer = io.BytesIO()
        sheet = Image.fromarray(lantern_jax.grid(list(pictures), COLUMNS))
        sheet.save(buffer, "WEBP", quality=94, method=6)
        files[options.out / f"{name}.webp"] = buffer.getvalue()
    write_files(files)


if __name__ == "__main__":
    run_script(main)
