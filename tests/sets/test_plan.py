"""Plans of sets: what is refused as another set, as not a set, or as damaged."""

import json
import time

import numpy as np
import pytest

from lantern_jax.apps.sets import plan as plans
from lantern_jax.apps.sets.plan import Worker, begin, read_plan
from lantern_jax.apps.sets.reading import merge, read_set
from tests.refused import refused
from tests.sets.making import a_plan, contents
from tests.tiny_checkpoint import PROMPTS, tiny_pipeline

CHANGES = {
    "seed 3, not 4": {"seed": 4}, "num 2, not 3": {"num": 3},
    'prompt 7 "fog", not "mist"': {"prompts": (*PROMPTS[:-1], "mist")},
    'prompt 7 "fog", not null': {"prompts": PROMPTS[:-1]},
    'model "tiny", not "other"': {"model": "other"}, 'dtype "float32", not "bfloat16"': {"dtype": "bfloat16"},
    'format "png", not "webp"': {"format": "webp"}, "shard size 3, not 4": {"shard_size": 4},
    "sums .*, not null": {"sums": None}, "temperature 1.0, not 0.5": {"settings": {"temperature": 0.5}},
    "tar true, not false": {"tar": False}, 'negative prompt 1 null, not "fog"': {"negatives": ("fog",)},
    'drafting ".*, not "jacobi:.*"': {"settings": {"method": "jacobi"}},
}  # fmt: skip


def test_another_set_is_refused(whole):
    before = contents(whole)
    for line, parts in CHANGES.items():
        if "settings" in parts:
            parts = {"settings": tiny_pipeline().settings(parts["settings"]).to_json()}
        with refused(rf"holds another set \({line}\): name another folder"):
            begin(whole, a_plan(**parts))
    assert contents(whole) == before
    assert a_plan(settings=tiny_pipeline().settings({"batch": 2}).to_json()) == a_plan()
    assert read_plan(whole) == a_plan()
    with refused("is not a folder: make it first"):
        begin(whole / "none" / "set", a_plan())


@pytest.mark.parametrize("wrong", [
    {"num": 10**18}, {"num": 0}, {"num": 2.0}, {"num": True}, {"num": None}, {"num": 2**31}, {"num": [2]},
    {"shard_size": 0}, {"shard_size": -1}, {"shard_size": "3"}, {"shard_size": 1, "num": 10**6},
    {"shard_size": 2**31 - 1, "num": 10**7}, {"prompts": {}}, {"prompts": []}, {"prompts": "ab"}, {"prompts": [3]},
    {"prompts": {"a lake": 1}}, {"prompts": None}, {"seed": -1}, {"seed": 2**32}, {"seed": 0.5}, {"seed": "3"},
    {"model": None}, {"dtype": 32}, {"settings": []}, {"settings": None}, {"format": "gif"}, {"format": ["png"]},
    {"sums": 3}, {"sums": ["a"]}, {"more": 1},
    {"tar": 1}, {"tar": None}, {"tar": "yes"}, {"size": 3}, {"negatives": "a"}, {"negatives": [3]}, {"negatives": None},
    {"negatives": ["fog", "mist"]},
], ids=str)  # fmt: skip
def test_every_field_of_a_plan_is_checked(whole, tmp_path, wrong):
    """A plan may be a stranger's; looking for more pictures than there can be would never end."""
    plan = json.loads((whole / "set.json").read_text())
    (tmp_path / "set.json").write_text(json.dumps(plan))
    assert read_plan(tmp_path) == a_plan()
    (tmp_path / "set.json").write_text(json.dumps(plan | wrong))
    for read in (read_plan, merge, read_set):
        with refused(r"set\.json is damaged or of another version") as error:
            read(tmp_path)
        assert len(str(error.value)) < 600


def test_the_largest_possible_set_is_looked_through_quickly(tmp_path):
    largest = a_plan(prompts=("a lake",), num=plans.MOST_SHARDS, shard_size=1)
    began = time.monotonic()
    assert len(largest.missing(tmp_path)) == largest.shards == plans.MOST_SHARDS
    assert time.monotonic() - began < 20
    with pytest.raises(ValueError, match="shard size 1 is not valid for 100001 pictures: give 2 to"):
        a_plan(prompts=("a lake",), num=plans.MOST_SHARDS + 1, shard_size=1)
    # A set may have more pictures than one call.
    encoded = tiny_pipeline().encode("a lake")
    assert tiny_pipeline().prepare(encoded, num=50_000)[0].call.num == 50_000


def test_every_shard_has_exactly_one_worker():
    plan = a_plan(num=5)
    for count in (1, 2, 3, 7, 20):
        parts = [shard for number in range(1, count + 1) for shard in Worker(number, count).shards(plan)]
        assert sorted(parts) == list(range(plan.shards))
    numbers = np.concatenate([plan.numbers(shard) for shard in range(plan.shards)])
    assert numbers.tolist() == list(range(plan.count))
