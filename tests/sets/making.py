"""Sets of the tiny checkpoint, for the tests of this folder."""

from pathlib import Path

from lantern_jax.apps.sets.making import make_set
from lantern_jax.apps.sets.opening import OpenedSet
from lantern_jax.apps.sets.set_plan import Part, SetPlan, begin
from tests.tiny_checkpoint import PROMPTS, tiny_pipeline

OPTIONS, SHARD = {"batch": 4}, 3


def a_plan(**parts) -> SetPlan:
    settings = tiny_pipeline().settings(OPTIONS).to_json()
    held = {
        "prompts": PROMPTS, "num": 2, "seed": 3, "model": "tiny", "dtype": "float32", "settings": settings,
        "shard_size": SHARD,
    }  # fmt: skip
    return SetPlan(**held | parts)


def make(directory, plan=None, part="1/1", pipeline=None, options=OPTIONS, **more):
    plan = a_plan() if plan is None else plan
    begin(directory, plan)
    return make_set(
        OpenedSet(pipeline or tiny_pipeline(), plan, options), directory, Part.parse(part), **more
    )


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}
