"""From prompts to pictures on a tiny random checkpoint."""

import dataclasses
import itertools

import numpy as np
import pytest

from lantern_jax.apps.display.acceptance import draw_acceptance
from lantern_jax.engine import compiler, engine
from lantern_jax.pipeline import plan
from lantern_jax.pipeline.call import Call
from lantern_jax.pipeline.inputs import prompt_encoder
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings.tuned import Found
from lantern_jax.text.encoded import EncodedPrompts, load_encoded, save_encoded
from tests.command import must_not_run
from tests.refused import refused
from tests.tiny_checkpoint import (
    CODES,
    NEIGHBOURS,
    SIDE,
    TARGET,
    TOKENS,
    altered_pipeline,
    tiny_checkpoint,
    tiny_pipeline,
)

PROMPTS = ["snowy mountains at dusk by a calm lake", "a foggy forest"]


@pytest.fixture(scope="module")
def compared():
    return tiny_pipeline().generate(PROMPTS, seed=3, compare=True)


def test_strict_decoding_repeats_plain_decoding(compared):
    np.testing.assert_array_equal(compared.tokens, compared.plain.tokens)
    assert compared.statistics.same_tokens == 1
    assert np.abs(compared.pictures.astype(int) - compared.plain.pictures).max() <= 1
    assert compared.pictures.shape == (2, SIDE, SIDE, 3) and compared.pictures.dtype == np.uint8
    assert compared.pictures.std() > 1
    assert compared.tokens.shape == (2, TOKENS) and compared.tokens.dtype == np.int32
    assert 0 <= compared.tokens.min() <= compared.tokens.max() < CODES
    np.testing.assert_array_equal(np.asarray(compared.images[1]), compared.pictures[1])


def test_a_call_is_planned_and_then_run(compared, monkeypatch):
    """A plan knows everything about a call and computes nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "compile_ahead", must_not_run)
        patch.setattr(engine, "run_timed", must_not_run)
        planned = tiny_pipeline().plan(PROMPTS, seed=3, temperature=1, method=None)
    assert planned.call == Call(tiny_pipeline().check(PROMPTS), Found(), tuple(PROMPTS), 1, 3, 0, None)
    made = planned.run()
    assert made.settings == planned.call.settings.to_json() == compared.settings and not made.notes
    np.testing.assert_array_equal(made.tokens, compared.tokens)


def test_statistics_agree_with_each_other(compared):
    statistics, plain = compared.statistics, compared.plain.statistics
    assert statistics.tokens == 2 * TOKENS
    assert statistics.rounds == compared.round_of_token.max(axis=1).sum() == sum(statistics.accepted)
    accepted = sum(count * rounds for count, rounds in enumerate(statistics.accepted))
    assert statistics.rounds < plain.rounds, "nothing was accepted: the test shows nothing"
    # Rounds accept tokens and add one; the last round of a picture may reach beyond its end.
    assert statistics.tokens - 2 == accepted + statistics.rounds
    assert statistics.step_compression == (2 * TOKENS - 2) / statistics.rounds
    assert plain.step_compression == 1
    assert plain.rounds == 2 * (TOKENS - 1)
    assert statistics.tokens_per_second == statistics.tokens / statistics.seconds
    assert statistics.speedup == plain.seconds / statistics.seconds
    assert statistics.compile_seconds >= plain.compile_seconds >= 0
    assert statistics.substituted == statistics.mean_distance == 0


def test_batches_and_devices_change_nothing(compared):
    one_by_one = tiny_pipeline().generate(PROMPTS, seed=3, batch=1)
    np.testing.assert_array_equal(one_by_one.tokens, compared.tokens)
    assert np.abs(one_by_one.pictures.astype(int) - compared.pictures).max() <= 1
    assert one_by_one.statistics.rounds == compared.statistics.rounds
    # Three in chunks of two: the second chunk holds a sequence that is finished from the start.
    three = tiny_pipeline().generate([*PROMPTS, PROMPTS[0]], seed=3, batch=2)
    np.testing.assert_array_equal(three.tokens[:2], compared.tokens)
    assert three.pictures.shape == (3, SIDE, SIDE, 3)
    assert (three.tokens[2] != three.tokens[0]).any(), "pictures of one prompt must differ"


def test_a_set_made_in_several_calls_equals_one_made_in_a_single_call(compared):
    at_once = tiny_pipeline().generate(PROMPTS, num=3, seed=3, batch=2)
    for batch in (1, 2):
        parts = [
            tiny_pipeline().generate(PROMPTS[0], num=2, seed=3, batch=batch),
            tiny_pipeline().generate(PROMPTS[0], seed=3, first=2, batch=batch),
            tiny_pipeline().generate(PROMPTS[1], num=3, seed=3, first=3, batch=batch),
        ]
        np.testing.assert_array_equal(np.concatenate([part.tokens for part in parts]), at_once.tokens)
        assert np.concatenate([part.numbers for part in parts]).tolist() == at_once.numbers.tolist()
    assert at_once.numbers.tolist() == list(range(6))
    assert (at_once.tokens[0] == compared.tokens[0]).all()


def test_progress_grows_and_ends_at_the_total(compared):
    for compare, pictures in ((False, 3), (True, 6)):
        told = []
        options = {"num": 3, "batch": 2, "seed": 3, "compare": compare}
        made = tiny_pipeline().generate("a lake", **options, progress=told.append)
        total = pictures * TOKENS
        assert {one.total for one in told} == {total}
        for fewer, more in itertools.pairwise(told):
            assert fewer.tokens <= more.tokens and fewer.pictures <= more.pictures
            assert fewer.seconds <= more.seconds
        assert len({one.tokens for one in told}) > pictures, "reported too seldom"
        assert 0 < told[0].tokens < total
        assert (told[-1].tokens, told[-1].pictures) == (total, pictures)
        runs = [made.statistics] + ([made.plain.statistics] if compare else [])
        assert told[-1].seconds == pytest.approx(sum(run.seconds for run in runs))


def test_pictures_are_handed_over_as_they_finish(monkeypatch):
    # One round per piece: what finishes first does not depend on the machine's speed.
    monkeypatch.setattr(plan, "PIECE_SECONDS", 0)
    prompts = [*PROMPTS, "a lake"]
    call = {"num": 3, "seed": 8, "first": 7, "batch": 4, "method": "gumbel"}
    whole = tiny_pipeline().generate(prompts, **call)
    each = list(tiny_pipeline().iterate(prompts, **call))
    numbers = [one.number for one in each]
    assert sorted(numbers) == whole.numbers.tolist() == list(range(7, 16))
    assert numbers != sorted(numbers), "all finished in order: the test shows nothing"
    for one in each:
        row = one.number - 7
        assert one.prompt == whole.prompts[row]
        np.testing.assert_array_equal(one.tokens, whole.tokens[row])
        assert np.abs(one.picture.astype(int) - whole.pictures[row]).max() <= 1
        assert one.rounds == whole.round_of_token[row].max()
        assert one.image.size == (SIDE, SIDE)
    rounds = {one.number: one.rounds for one in each}
    for batch in ([7, 8, 9, 10], [11, 12, 13, 14]):
        order = [rounds[number] for number in numbers if number in batch]
        assert order == sorted(order), "a picture waited for one that took longer"
    with pytest.raises(ValueError, match="num 0"):
        next(tiny_pipeline().iterate(prompts, num=0))


def test_relaxed_rules_report_what_they_substitute(compared):
    strict = tiny_pipeline().generate(PROMPTS, seed=3, rule="lantern++:lam=1")
    np.testing.assert_array_equal(strict.tokens, compared.tokens)
    relaxed = tiny_pipeline().generate(PROMPTS, seed=3, rule="lantern++:lam=30")
    assert relaxed.statistics.substituted > 0
    assert 0 < relaxed.statistics.mean_distance <= 2
    assert relaxed.statistics.rounds <= compared.statistics.rounds


def test_no_guidance_uses_one_row():
    run = tiny_pipeline().generate(PROMPTS, seed=3, guidance=1.0, method="ar").statistics
    assert run.step_compression == 1 and run.accepted == (2 * (TOKENS - 1),)


def test_without_a_tokenizer_there_are_tokens_only(compared):
    made = altered_pipeline(tokenizer_config=None, tokenizer_params=None).generate(PROMPTS, seed=3)
    assert made.pictures is None and made.images == []
    for take in (lambda: made.sheet, lambda: draw_acceptance(made)):
        with refused("tokens and no pictures"):
            take()
    np.testing.assert_array_equal(made.tokens, compared.tokens)


BAD = [
    ({"prompts": "a purple cat"}, "purple"), ({"prompts": ""}, "empty prompt"), ({"prompts": []}, "no prompts"),
    ({"prompts": [7]}, "not text"), ({"first": 2**32 - 1}, "first 4294967295"),
    ({"temperature": float("nan")}, "temperature nan"),
    ({"rule": f"lantern++:k={NEIGHBOURS + 1}"}, f"give k <= {NEIGHBOURS}"),
    ({"most": 5}, "'most' is not an option"), ({"encode": 1}, "'encode' is not an option"),
    ({"pictures": 1}, "'pictures' is not an option"),
    ({"method": f"gumbel:tree={CODES}"}, f"child rank {CODES}"),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "message"), BAD, ids=[str(bad)[:40] for bad, _ in BAD])
def test_bad_input_is_refused_before_computing(bad, message, monkeypatch):
    monkeypatch.setattr(compiler, "compile_ahead", must_not_run)
    monkeypatch.setattr(engine, "run_timed", must_not_run)
    with refused(message):
        tiny_pipeline().generate(**{"prompts": PROMPTS} | bad)


@pytest.mark.parametrize("dtype", ["float64", "float8_e4m3fn", "int8", "half of it", 16])
def test_a_dtype_that_no_model_computes_in_is_refused(dtype):
    with refused(f"dtype {dtype!r} is not valid: give one of float16, bfloat16, float32"):
        Pipeline(tiny_checkpoint(), dtype)


def test_bad_conditioning_is_refused():
    for rows in (
        np.zeros((2, 3), np.int32),
        np.zeros((0, TARGET.label_slots), np.int32),
        np.full((1, TARGET.label_slots), 99),
        np.zeros((1, TARGET.label_slots)),
    ):
        with refused("labels|no prompts"):
            tiny_pipeline().generate(EncodedPrompts("labels", ("a",) * len(rows), {"labels": rows}))


def encoder_of(**config):
    """Returns the prompt encoder of a target with other conditioning and no words."""
    target = dataclasses.replace(TARGET, null_labels=None, **config)
    return prompt_encoder(dataclasses.replace(tiny_checkpoint(), target_config=target, vocabulary=None))


def test_class_numbers_and_names_are_prompts_of_class_conditional_models():
    few, imagenet = (encoder_of(num_labels=count, label_slots=1) for count in (11, 1001))
    assert few.encode(["7", 3]).tolist() == [[7], [3]]
    assert imagenet.encode(["goldfish", "Golden Retriever", "999"]).tolist() == [[1], [207], [999]]
    wrong = [(few, each) for each in ("10", "-1", "dog", "", 10, True, 1.5)]
    for encoder, prompt in (*wrong, *((imagenet, each) for each in ("1000", "goldfsh", " "))):
        for take in (encoder.encode, encoder.prepare):
            with refused("class"):
                take([prompt])


def test_caption_conditional_models_take_features():
    captions = encoder_of(num_labels=0, caption_dim=6, caption_length=3)
    for take in (captions.prepare, captions.encode):
        with pytest.raises(ValueError, match="no text encoder"):
            take(["a lake"])
    whole, seen = np.ones((2, 3, 6), np.float32), np.ones((2, 3), bool)

    def take(features, mask):
        encoded = EncodedPrompts("captions", ("a", "b"), {"features": features, "mask": mask})
        return captions.from_encoded(encoded)

    assert take(whole, seen).features.shape == (2, 3, 6)
    for message, arrays in {
        r"\[n, 3, 6\]": (whole[:, 0], seen),
        "finite": (whole * np.nan, seen),
        "mask": (whole, np.ones((2, 6), bool)),
        "prompt 1 ends in padding on the right": (whole, np.arange(3) < np.array([[3], [2]])),
    }.items():
        with refused(message):
            take(*arrays)


def test_encoded_prompts_may_be_used_again(compared, tmp_path):
    encoded = tiny_pipeline().encode(PROMPTS)
    save_encoded(tmp_path / "prompts.npz", encoded.kind, encoded.prompts, encoded.arrays)
    again = tiny_pipeline().generate(load_encoded(tmp_path / "prompts.npz"), seed=3)
    np.testing.assert_array_equal(again.tokens, compared.tokens)
    assert again.prompts == tuple(PROMPTS)
    with pytest.raises(ValueError, match="encoded as labels, this checkpoint takes captions"):
        encoder_of(num_labels=0, caption_dim=6, caption_length=3).from_encoded(encoded)
    foreign = dataclasses.replace(encoded, arrays={"labels": encoded.arrays["labels"] + 1000})
    with pytest.raises(ValueError, match=r"labels are 10\d\d to 10\d\d: give 0 to"):
        tiny_pipeline().generate(foreign)
