"""Which programs are compiled, how large they are, and that devices change nothing but speed."""

import contextlib
import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import lantern_jax
from lantern_jax.decoding.acceptance import Strict
from lantern_jax.devices.partition import place
from lantern_jax.engine import compiler, programs
from lantern_jax.engine.placement import Placement
from tests.cases import exhaustive, slow
from tests.command import must_not_run
from tests.refused import refused
from tests.tiny_checkpoint import TOKENS, pipeline_on, tiny_pipeline

# Settings with the same filters on share one program.
OPTIONS = {"top_k": 20, "top_p": 0.9, "method": "lantern-g:tree=0+1", "rule": "lantern++:lam=2"}
SWEEP = [
    {"temperature": 0.5},
    {"temperature": 1.7},
    {"guidance": 1.5},
    {"guidance": 9.0},
    {"top_k": 3},
    {"top_p": 0.3},
    {"rule": "lantern++:lam=30"},
    {"rule": "lantern++:lam=1"},
    {"temperature": 0.8, "guidance": 3.0, "top_k": 30, "top_p": 0.99, "rule": "lantern++:lam=4"},
]


@pytest.fixture
def compiled():
    """The names of the functions that XLA compiled, whoever asked for it."""
    names = []

    def listen(event, seconds, **more):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(more["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def kinds(pipeline) -> dict[str, int]:
    """Counts the programs of each kind that the engine holds."""
    names = [key.kind for key in pipeline.engine.programs]
    return {name: names.count(name) for name in ("start", "advance", "draw")}


@pytest.mark.parametrize(("devices", "counts"), [exhaustive(1, (1, 3, 4)), (8, range(2, 9))])
def test_few_programs_serve_any_number_of_prompts_and_a_sweep(devices, counts, compiled):
    pipeline = pipeline_on(devices)
    for count in counts:
        made = pipeline.generate(["a lake"] * count, **OPTIONS)
        assert made.tokens.shape == (count, TOKENS)
    before = kinds(pipeline)
    # A single picture has programs of its own.
    number = 2 if 1 in counts else 1
    assert before == {"start": number, "advance": number, "draw": number}
    for kind, number in before.items():
        assert compiled.count(f"jit({kind})") == number, "programs that the engine does not know of"
    compiled.clear()
    tokens = [pipeline.generate(["a lake"] * counts[-1], **OPTIONS | changed).tokens for changed in SWEEP]
    assert kinds(pipeline) == before
    assert not compiled
    assert len({tuple(made.ravel()) for made in tokens}) > len(SWEEP) / 2, "the sweep changes nothing"


@pytest.mark.slow
def test_another_filter_is_another_program(compiled):
    """Shows that the count above does see programs."""
    pipeline = pipeline_on(1)
    for top_k in (0, 3):
        assert pipeline.generate("a lake", method="ar", top_k=top_k).statistics.compile_seconds > 0
    assert compiled.count("jit(advance)") == kinds(pipeline)["advance"] == 2


@pytest.mark.parametrize(
    ("count", "devices", "most", "expected"),
    [
        (1, 1, None, (1, 1)), (3, 1, None, (1, 4)), (5, 1, 8, (1, 8)), (5, 1, 6, (1, 6)), (6, 1, 6, (1, 6)),
        (1, 8, 8, (1, 1)), (2, 8, 8, (8, 8)), (9, 8, 16, (8, 16)), (9, 4, 9, (4, 12)), (7, 3, None, (3, 12)),
        (5, 2, 5, (2, 6)), (3, 2, 5, (2, 4)),
    ],
)  # fmt: skip
def test_sizes_of_programs(count, devices, most, expected):
    assert programs.spread(count, devices, most) == expected


def test_target_and_drafter_are_read_from_the_same_devices():
    """Even if another thread asks for other devices in between."""
    one = np.zeros(1, np.float32)
    placement = Placement(
        lambda where: programs.Parameters(place(one, where), {}, None, None),
        lambda name, parameters, where: place(one, where),
        jax.devices()[:2],
    )
    drafter, threads = placement.drafter, []

    def disturbed(name):
        threads.append(threading.Thread(target=placement.on, args=(1,)))
        threads[-1].start()
        threads[-1].join(0.2)
        return drafter(name)

    placement.drafter = disturbed
    job = SimpleNamespace(drafter="eagle", rule=Strict(), guidance=1, sampling=None)
    inputs = placement.inputs(job, 2, 2)
    threads[0].join()
    assert inputs.target_params.devices() == inputs.drafting_params.devices() == set(jax.devices()[:2])
    assert placement.parameters.target.devices() == set(jax.devices()[:1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": -1}, "seeds are -1 to -1: give 0 to 4294967295"),
        ({"seed": 1.5}, "seeds are float64"),
        ({"first": 2**32 - 1}, "numbers of sequences are 4294967295 to 4294967296"),
        ({"labels": 99}, "labels are 99 to 99: give 0 to"),
    ],
)
def test_numbers_that_would_wrap_or_be_cut_are_refused(given, message):
    pipeline = tiny_pipeline()
    rows = np.repeat(pipeline.encode("a lake").arrays["labels"], 2, axis=0)
    if "labels" in given:
        rows = np.full_like(rows, given.pop("labels"))
    with pytest.raises(ValueError, match=message):
        pipeline.engine.start(pipeline.job(pipeline.check("a lake")), rows, **given)


def test_a_pipeline_cannot_run_where_jax_does_not_compile():
    with jax.disable_jit(), refused("jax_disable_jit is on.*switch it off, or use speculative_decode"):
        tiny_pipeline().generate("a lake")


def test_codes_of_the_wrong_kind_are_refused(monkeypatch):
    monkeypatch.setattr(compiler, "compile_ahead", must_not_run)
    for codes, message in (
        (
            np.zeros((0, TOKENS), int),
            rf"codes have shape \(0, {TOKENS}\) of int64: give whole numbers, {TOKENS} per",
        ),
        (np.array([[-1] + [0] * (TOKENS - 1)]), "codes are -1 to 0"),
        (np.zeros((1, TOKENS)), "of float64: give whole numbers"),
    ):
        with refused(message):
            tiny_pipeline().draw(codes)


@pytest.mark.slow
def test_a_mesh_set_by_the_caller_does_not_affect_a_pipeline():
    options = {"seed": 3, "method": "ar", "log_probs": True}
    expected = tiny_pipeline().generate("a lake", **options)
    with jax.set_mesh(jax.make_mesh((4, 2), ("pictures", "other"))):
        made = pipeline_on(1).generate("a lake", **options)
    np.testing.assert_array_equal(made.tokens, expected.tokens)
    np.testing.assert_array_equal(made.pictures, expected.pictures)
    np.testing.assert_array_equal(made.log_probs, expected.log_probs)


@pytest.mark.parametrize("jax_has_other_defaults", [False, True])
def test_the_noise_stays_the_same(jax_has_other_defaults):
    """Changing the noise, or how it is numbered, changes every picture of every seed: never silently."""
    with contextlib.ExitStack() as defaults:
        if jax_has_other_defaults:
            defaults.enter_context(jax.default_prng_impl("rbg"))
            defaults.enter_context(jax.threefry_partitionable(False))
            defaults.enter_context(jax.enable_x64(True))
        pipeline = pipeline_on(1) if jax_has_other_defaults else tiny_pipeline()
        made = pipeline.generate("a lake", num=2, seed=7, method="ar")
    assert made.tokens.tolist() == [
        [21, 14, 16, 26, 29, 14, 23, 9, 29, 14, 9, 21, 14, 9, 24, 20],
        [23, 24, 31, 23, 14, 23, 24, 18, 23, 14, 15, 19, 27, 19, 27, 19],
    ]


@pytest.mark.exhaustive
def test_the_demos_tokens_stay_the_same():
    demo = lantern_jax.load("demo", "float32")
    job = demo.job(demo.check("a lake"), plain=True)
    rows = demo.encode("snowy mountains at dusk by a calm lake").arrays["labels"]
    run = demo.engine.advance(demo.engine.start(job, rows, seed=7), 15)
    expected = [1358, 55, 1230, 1873, 3422, 3315, 2744, 1280, 806, 1382, 1848, 2662, 2089, 427, 1230, 3866]
    assert demo.engine.finish(run).tokens[0, : run.lengths[0]].tolist() == expected


@pytest.mark.parametrize("devices", [slow(1), 4])
def test_large_pictures_are_drawn_and_encoded_a_few_at_a_time(devices, monkeypatch):
    """A device's memory for drawing is that of a fixed number of pixels, for any batch."""
    codes = np.arange(5 * TOKENS, dtype=np.int32).reshape(5, TOKENS) % 8
    engine = pipeline_on(devices).engine
    drawn, _, _ = engine.draw(codes)
    encoded = engine.encode(drawn)
    monkeypatch.setattr(programs, "PIXELS_PER_PASS", drawn[0, :, :, 0].size)
    engine = pipeline_on(devices).engine
    few, finite, _ = engine.draw(codes)
    # Convolutions over another number of pictures round differently.
    np.testing.assert_allclose(few.astype(int), drawn.astype(int), atol=1)
    assert finite.tolist() == [True] * 5
    np.testing.assert_array_equal(engine.encode(drawn), encoded)
    # For one picture the model is not moved.
    np.testing.assert_array_equal(engine.encode(drawn[:1]), encoded[:1])
    assert engine.placement.groups == devices
    engine.draw(codes[:1], most=1)
    sizes = sorted({(key.kind, key.size) for key in engine.programs})
    assert sizes == sorted({("draw", devices), ("encode", devices), ("draw", 1)})
