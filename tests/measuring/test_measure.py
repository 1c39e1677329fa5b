"""Measuring: what is left out and why, consistent numbers, random models made where they are used."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from eval import profile
from lantern_jax.apps.measuring.accept_lengths import AcceptLengths
from lantern_jax.apps.measuring.measure import (
    LEAST_REPEATS,
    Batch,
    Procedure,
    _row,
    alternate,
    measure,
    members,
)
from lantern_jax.apps.measuring.subject import checkpoint_subject, random_subject, sample_prompts
from lantern_jax.apps.measuring.sweep import expand
from lantern_jax.decoding.stream import Decoded
from lantern_jax.engine.engine import Engine
from tests.tiny_checkpoint import TOKENS, TREE, tiny_pipeline

PLAN = Procedure(pictures=2)


def configurations(texts, **lists):
    return expand(texts.split(), **lists)


def tiny_subject():
    pipeline = tiny_pipeline()
    return checkpoint_subject("tiny", pipeline, sample_prompts(pipeline.checkpoint, 8))


def test_groups_share_their_plain_decoding_and_repeat_nothing():
    wanted = configurations("gumbel gumbel:drafter=eagle led", batches=[1, 2])
    wanted += configurations("gumbel", options={"temperature": 0.5})
    groups, reasons = members(tiny_subject(), wanted)
    assert not reasons
    assert [[one.configuration.method for one in group] for group in groups] == [
        ["ar", "gumbel", "led"], ["ar", "gumbel", "led"], ["ar", "gumbel"],
    ]  # fmt: skip
    assert [group[0].settings.temperature for group in groups] == [1, 1, 0.5]
    assert all(group[0].settings.is_plain and not group[0].job.drafter for group in groups)
    assert groups[0][0].configuration.options == {}
    assert groups[2][0].configuration.options == {"temperature": 0.5}


def test_what_rows_decoded_in_parallel_substitute_is_not_known():
    """Nothing verifies them: 0 would say that they are lossless."""
    subject, one, tokens = tiny_subject(), np.ones(1, np.int32), np.zeros((1, TOKENS), np.int32)
    batch = Batch(0.1, 0.01, Decoded(tokens, 8 * one, 8 * one[None], tokens, 0 * one, 0.0 * one, one > 0))
    ((_, jacobi, zipar),), _ = members(subject, configurations("jacobi zipar"))
    rows = [_row(subject, one, PLAN, [batch], [batch], None) for one in (jacobi, zipar)]
    assert [(row.substituted, row.distortion) for row in rows] == [(0, 0), (None, None)]


def test_what_cannot_be_measured_gets_a_reason():
    several = configurations("led", options={"coupling": "rejection"}) + configurations(
        "medusa lantern-g:k=20 gumbel"
    )
    groups, reasons = members(tiny_subject(), several)
    assert [one.configuration.method for one in groups[0]] == ["ar", "gumbel"]
    assert len(reasons) == 3 and "the table stores 12" in reasons[2]
    assert "led needs the coupling gumbel" in reasons[0] and "medusa" in reasons[1]
    groups, reasons = members(tiny_subject(), configurations("gumbel led zipar"), AcceptLengths(mean=3.63))
    assert [one.configuration.method for one in groups[0]] == ["ar", "led"]
    assert "tree of depth 3, and this one has 2" in reasons[0] and "zipar" in reasons[1]


def test_numbers_of_a_run_are_consistent():
    subject = tiny_subject()
    group = members(subject, configurations("lantern-g:lam=50 jacobi:window=3", batches=[2]))[0][0]
    plain, relaxed, window = measure(subject, group, PLAN)
    assert (plain.nodes, plain.tokens_a_pass, plain.passes, plain.speedup) == (0, 1, TOKENS - 1, 1)
    assert (relaxed.nodes, relaxed.depth, window.nodes, window.depth) == (len(TREE), 2, 3, 3)
    for row in (relaxed, window):
        assert row.repeats == LEAST_REPEATS and row.batch == 2 and row.guidance == 2.0
        assert row.passes == pytest.approx((TOKENS - 1) / row.tokens_a_pass)
        assert row.efficiency == pytest.approx(row.speedup / row.tokens_a_pass)
        assert row.speedup == row.plain_seconds / row.seconds
        assert row.speedup_quartiles[0] <= row.speedup <= row.speedup_quartiles[1]
        assert row.plain_seconds == plain.seconds
        # Every pass gives its accepted tokens and one more; the last one may be cut.
        assert 1 + sum(row.acceptance) == pytest.approx(row.tokens_a_pass)
        assert row.quartiles[0] <= row.seconds <= row.quartiles[1]
        assert set(row.versions) >= {"jax", "python"}
    assert window.substituted == 0 and relaxed.substituted > 0 and relaxed.distortion > 0
    assert (plain.pixels, plain.dtype) == (16, "float32")
    assert plain.device.startswith("cpu of ")


@pytest.mark.slow
def test_a_stopped_picture_is_extrapolated_to_its_end():
    subject = random_subject("tiny", "float32", prompts=4, mesh="data=1")
    profile = AcceptLengths(chances=(0.0, 1.0))
    group = members(subject, configurations("led:window=4,refine=1"), profile)[0][0]
    plain, row = measure(subject, group, dataclasses.replace(PLAN, passes=5, profile=profile))
    assert row.tokens_a_pass == 2
    assert row.passes == pytest.approx(35 / 2) and plain.passes == pytest.approx(35)
    assert row.measured_passes == 5 and row.acceptance == [1.0] and row.model == "random tiny"
    assert row.forced and not plain.forced and row.accept_lengths == [0, 1] and plain.accept_lengths is None
    assert row.substituted is None and row.distortion is None
    assert row.seconds > 3 * row.ms_a_pass / 1e3


def test_pictures_have_their_own_prompts_and_numbers():
    """Picture i of a set is picture i of any other: decoded alone, in another batch, from another start."""
    subject = tiny_subject()
    job = subject.job(subject.settings({"method": "ar"}))
    whole, part = subject.decode(job, 1, 4, 4), subject.decode(job, 3, 2, 1)
    np.testing.assert_array_equal(part.tokens, whole.tokens[2:4])
    alone = [jax.tree.leaves(subject.rows(row, 1))[0][0].tolist() for row in (1, 2, 3)]
    assert jax.tree.leaves(subject.rows(9, 3))[0].tolist() == alone


def test_tasks_alternate():
    order = []
    given = alternate({name: lambda repeat, name=name: order.append(name) or repeat for name in "ab"}, 3)
    assert order == list("abbaab") and given == {"a": [0, 1, 2], "b": [0, 1, 2]}


def test_parts_of_a_pass_are_recognised_by_their_scopes():
    assert profile.part_of("jit(advance)/jit(main)/while/body/draft/absorb/dot_general") == "draft"
    assert profile.part_of("jit(advance)/while/body/verify/target_tokens/argmax") == "verify"
    assert profile.part_of("jit(advance)/while") == "other"
    program = """
  %add.1 = f32[4]{0} add(%a, %b), metadata={op_name="jit(advance)/while/body/score/add" stack_frame_id=3}
  %while.2 = (s32[], f32[4]{0}) while(%tuple), body=%body, metadata={op_name="jit(advance)/while"}
  %call.7 = f32[4]{0} custom-call(%add.1), metadata={op_name="jit(advance)/score/layer_0/attend_1/pallas_call"}
  ROOT %fusion.3 = f32[4]{0} fusion(%add.1), kind=kLoop, metadata={op_name="jit(advance)/sub"}
}

%body (p: f32[4]) -> f32[4] {
  %dot.4 = f32[4]{0} custom-call(%p)
  %select.5 = f32[4]{0} select(%dot.4), metadata={op_name="jit(advance)/while/body/draft/select"}
  %copy.6 = f32[4]{0} copy(%select.5)
}
"""
    assert profile.owners_of(program) == {
        "add.1": "score", "while.2": "", "fusion.3": "other", "dot.4": "draft", "select.5": "draft", "copy.6": "other",
        "call.7": "score", "attend_1": "score",
    }  # fmt: skip


def test_an_accelerators_streams_are_counted_once():
    """Neither the host's launches nor lines that sum up others count; without a device the host's named events do."""

    def event(nanoseconds, name="launch", **stats):
        return SimpleNamespace(duration_ns=nanoseconds, name=name, stats=list(stats.items()))

    def plane(name, **lines):
        return SimpleNamespace(name=name, lines=[SimpleNamespace(name=n, events=e) for n, e in lines.items()])

    owners = {"dot.1": "score", "add.2": "commit", "while.3": ""}
    host = plane("/host:CPU", python=[event(9.0), event(5.0, hlo_op="dot.1")])
    events = [event(2.0, hlo_op="dot.1"), event(3.0, hlo_op="add.2"), event(4.0), event(1.0, hlo_op="dot.1")]
    device = plane("/device:GPU:0", **{"Stream #7": events, "XLA Ops": events, "XLA Modules": [event(10.0)]})
    assert profile.spent_by_part([host, device], owners) == ({"score": 3.0, "commit": 3.0, "unknown": 4.0}, 4)
    assert profile.spent_by_part([host], owners) == ({"score": 5.0}, 1)
    operations = [event(9.0, hlo_op="while.3"), *events]
    core = plane("/device:TPU:0", **{"XLA Ops": operations, "Steps": [event(10.0)]})
    assert profile.spent_by_part([core], owners)[0] == {"score": 3.0, "commit": 3.0, "unknown": 4.0}
    graph = [event(2.0, "dot_1"), event(3.0, "attend__2"), event(4.0, "Memcpy")]
    device = plane("/device:GPU:0", **{"Stream #7": graph})
    expected = {"score": 2.0, "draft": 3.0, "unknown": 4.0}
    assert profile.spent_by_part([device], owners | {"attend": "draft"})[0] == expected


@pytest.mark.slow
def test_the_shares_of_a_profile_add_up():
    pipeline = tiny_pipeline()
    engine = Engine(lambda where: pipeline.engine.parameters, devices=jax.devices()[:1])
    recipe = dataclasses.replace(pipeline.recipe, drafters={})
    subject = dataclasses.replace(tiny_subject(), engine=engine, recipe=recipe)
    member = members(subject, configurations("jacobi:window=1"))[0][0][1]
    run = engine.advance(engine.start(member.job, subject.rows(0, 1)), 1)
    found = profile.profile_of_a_pass(engine, run)
    shares = found.shares
    assert set(shares) >= {"score", "commit"} and all(value >= 0 for value in shares.values())
    assert sum(shares.values()) == pytest.approx(1) and shares["score"] > 0.1
    assert found.kernels is None  # A CPU has none.
