"""Sets of the tiny checkpoint, for the tests of this folder."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lantern_jax.apps.metrics.features import FeatureReader
from lantern_jax.apps.sets.plan import SetPlan, Worker, begin
from lantern_jax.apps.sets.request import OpenedSet
from lantern_jax.apps.sets.worker import make_set
from tests.tiny_checkpoint import PROMPTS, tiny_pipeline

OPTIONS, SHARD = {"batch": 4}, 3
READER = FeatureReader(
    "toy mean, none/plain", 3, lambda picture: picture.astype(np.float32) / 255,
    lambda pictures: pictures.mean(axis=(1, 2)), batch=4,
)  # fmt: skip
SUMS = f"moments/{READER.name}"


def a_plan(**parts) -> SetPlan:
    settings = tiny_pipeline().settings(OPTIONS).to_json()
    held = {
        "prompts": PROMPTS, "num": 2, "seed": 3, "model": "tiny", "dtype": "float32", "settings": settings,
        "format": "png", "shard_size": SHARD, "sums": READER.name, "tar": True,
    }  # fmt: skip
    return SetPlan(**held | parts)


def make(directory, plan=None, worker="1/1", pipeline=None, options=OPTIONS, **more):
    plan = a_plan() if plan is None else plan
    begin(directory, plan)
    opened = OpenedSet(pipeline or tiny_pipeline(), plan, options, reader=READER if plan.sums else None)
    return make_set(opened, directory, Worker.parse(worker), **more)


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def refused(work: Callable[[], object], *words: str) -> None:
    """Expects a one-line error with these words."""
    with pytest.raises(ValueError) as refusal:
        list(work())
    text = str(refusal.value)
    assert "\n" not in text and all(word in text for word in words), text
