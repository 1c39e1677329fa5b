"""Plans of sets: what is refused as another set, or as damaged."""

import json

import numpy as np
import pytest

from lantern_jax.apps.sets.set_plan import Part, begin, read_plan
from tests.refused import refused
from tests.sets.making import a_plan, contents
from tests.tiny_checkpoint import PROMPTS, tiny_pipeline

CHANGES = {
    "seed 3, not 4": {"seed": 4}, "num 2, not 3": {"num": 3},
    'prompt 7 "fog", not "mist"': {"prompts": (*PROMPTS[:-1], "mist")},
    'prompt 7 "fog", not null': {"prompts": PROMPTS[:-1]},
    'model "tiny", not "other"': {"model": "other"}, 'dtype "float32", not "bfloat16"': {"dtype": "bfloat16"},
    "shard size 3, not 4": {"shard_size": 4}, "temperature 1.0, not 0.5": {"settings": {"temperature": 0.5}},
    'negative prompt 1 null, not "fog"': {"negatives": ("fog",)},
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


@pytest.mark.parametrize("wrong", [
    {"num": 0}, {"num": 2.0}, {"shard_size": "3"}, {"prompts": []}, {"prompts": None}, {"seed": -1}, {"more": 1},
    {"negatives": ["fog", "mist"]}, {"written_by": "lantern_jax picture set 1"},
], ids=str)  # fmt: skip
def test_a_damaged_plan_is_refused(whole, tmp_path, wrong):
    plan = json.loads((whole / "set.json").read_text())
    (tmp_path / "set.json").write_text(json.dumps(plan))
    assert read_plan(tmp_path) == a_plan()
    (tmp_path / "set.json").write_text(json.dumps(plan | wrong))
    with refused(r"set\.json is damaged or of another version"):
        read_plan(tmp_path)


def test_every_shard_is_in_exactly_one_part():
    plan = a_plan(num=5)
    for count in (1, 2, 3, 7, 20):
        parts = [shard for number in range(1, count + 1) for shard in Part(number, count).shards(plan)]
        assert sorted(parts) == list(range(plan.shards))
    numbers = np.concatenate([plan.numbers(shard) for shard in range(plan.shards)])
    assert numbers.tolist() == list(range(plan.count))


def test_a_set_may_have_more_pictures_than_one_call():
    encoded = tiny_pipeline().encode("a lake")
    assert tiny_pipeline().prepare(encoded, num=50_000)[0].call.num == 50_000
