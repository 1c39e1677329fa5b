"""Quality against speed: windows, intervals, and a whole run on a tiny model that goes on where it stopped."""

import json

import numpy as np
import pytest

import lantern_jax
from eval import quality_numbers as numbers
from eval import quality_runs as runs
from eval.methods import Bench, Setup
from lantern_jax.checkpoints.store import save
from lantern_jax.metrics.features import FeatureReader
from lantern_jax.metrics.scores import Score
from tests.tiny_checkpoint import sharing_programs, tiny_checkpoint, tiny_pipeline

COUNT, WIDTH = 60, 3
PROMPTS = np.random.default_rng(0).normal(size=(COUNT, WIDTH))


def made(features, seconds=1.0, tokens=None):
    """A setting's pictures; they agree with their prompts as far as they lie near to them."""
    agreement = 1 / (1 + (features[:, :1] - PROMPTS[:, :1]) ** 2)
    batches = 6
    sums = {name: np.full(batches, COUNT / batches) for name in numbers.SUMS}
    sums |= {"seconds": np.full(batches, seconds), "sampled": np.full(batches, 40.0)}
    tokens = np.zeros((COUNT, 4), int) if tokens is None else tokens
    return numbers.Made(sums, tokens, {"classifier": features, "agreement": agreement})


@pytest.fixture(scope="module")
def sets():
    """Real pictures a prompt, plain decoding's under two seeds, a far set and a narrow one, of the same prompts."""
    generator = np.random.default_rng(4)

    def drawn(spread=1.0):
        return PROMPTS + spread * generator.normal(size=(COUNT, WIDTH))

    real = np.stack([drawn() for _ in range(4)], axis=1)
    tokens = np.zeros((COUNT, 4), int)
    tokens[:15, 0] = 1
    names = {"ar": made(drawn()), "other seed": made(drawn()), "far": made(drawn() + 2, 0.5, tokens)}
    return real, names | {"narrow": made(drawn(0.1))}


def test_only_settings_that_differ_are_outside(sets):
    real, settings = sets
    measures = [numbers.frechet_measure("frechet", "classifier", real), numbers.agreement_measure()]
    rows = numbers.rows_of(settings, "ar", "other seed", measures, replicates=100, swaps=200)
    assert rows["ar"]["outside"] == rows["other seed"]["outside"] == []
    assert rows["far"]["outside"] == ["frechet", "agreement"]
    # Nearer to what the prompts ask for than plain decoding is outside as well.
    assert rows["narrow"]["agreement_less_plain"][0] > rows["narrow"]["windows"]["agreement"]
    assert "agreement" in rows["narrow"]["outside"]
    assert rows["ar"]["frechet_less_plain"] == [0, 0, 0]
    assert rows["far"]["frechet_less_plain"][1] > 0
    assert rows["far"]["speedup"] == [2, 2, 2] and rows["ar"]["speedup"] == [1, 1, 1]
    assert rows["far"]["same_pictures"] == 0.75 and rows["far"]["same_tokens"] == 1 - 15 / (4 * COUNT)
    assert rows["far"]["tokens_a_pass"][0] == (40 - 10) / 10
    for row in rows.values():
        for measure in ("frechet", "agreement"):
            value, low, high = row[measure]
            assert low <= value <= high


def test_the_kernel_distance_is_the_mean_over_pairs_of_prompts(sets):
    """By brute force, prompts drawn more than once included; and no distance between sets of one law."""
    real, settings = sets[0][:6, :2], sets[1]["ar"].read["classifier"][:6]
    rows = np.array([0, 0, 3, 4, 4, 5])

    def kernel(x, y):
        return (sum(a * b for a, b in zip(x, y, strict=True)) / WIDTH + 1) ** 3

    pairs = [(i, j) for i in rows for j in rows if i != j]
    expected = np.mean(
        [
            kernel(settings[i], settings[j])
            + np.mean([kernel(x, y) for x in real[i] for y in real[j]])
            - np.mean([kernel(settings[i], y) for y in real[j]])
            - np.mean([kernel(settings[j], y) for y in real[i]])
            for i, j in pairs
        ]
    )
    measure = numbers.kernel_measure("kid", "classifier", real)
    assert measure.of(settings)(rows) == pytest.approx(expected, rel=1e-9)
    generator = np.random.default_rng(3)
    zeros = [
        numbers.kernel_measure("kid", "", generator.normal(size=(20, 2, WIDTH))).of(
            generator.normal(size=(20, WIDTH))
        )(np.arange(20))
        for _ in range(400)
    ]
    assert abs(np.mean(zeros)) < 4 * np.std(zeros) / np.sqrt(len(zeros))


def test_a_window_holds_what_chance_does(sets):
    """By brute force: sets of the same law differ by less than the window in nearly all cases."""
    generator, settings = np.random.default_rng(1), sets[1]
    measure = numbers.agreement_measure()
    width = numbers.chance(measure, settings["ar"], settings["other seed"], swaps=500)
    apart = []
    for _ in range(300):
        one, two = (made(PROMPTS + generator.normal(size=PROMPTS.shape)) for _ in range(2))
        everything = np.arange(COUNT)
        apart.append(
            measure.of(one.read["agreement"])(everything) - measure.of(two.read["agreement"])(everything)
        )
    assert np.mean(np.abs(apart) < width) > 0.95 and width < 3 * np.percentile(np.abs(apart), 99)


def test_strict_and_relaxed_settings_are_told_apart():
    bench = Bench(Setup(pictures=1, batch=1), tiny_pipeline())
    for knobs, strict in (("ar", True), ("eagle", True), ("led", True), ("near", False), ("zipar", False)):
        assert runs.described(bench, {"method": knobs})["strict"] == strict, knobs


def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lantern_jax, "load", sharing_programs(lantern_jax.load))

    def prepare(picture):
        return picture.astype(np.float32).mean((0, 1))[None, None]

    reader = FeatureReader("means", 3, prepare, lambda pictures: pictures[:, 0, 0])
    score = Score("red", lambda pictures, prompts: pictures[:, :, :, 0].mean((1, 2)) / 255)
    monkeypatch.setattr(runs, "demo_features", lambda: reader)
    monkeypatch.setattr(runs, "agreement_scores", lambda: score)
    monkeypatch.setattr(runs, "keep_compiled_programs", lambda: None)
    model, work = save(tmp_path / "tiny", tiny_checkpoint()), tmp_path / "work"
    command = [
        "--model",
        str(model),
        "--work",
        str(work),
        "--pictures",
        "5",
        "--batch",
        "2",
        "--replicates",
        "20",
    ]
    runs.main([*command, "--methods", "gumbel"])
    rows = [json.loads(line) for line in (work / "quality.jsonl").read_text().splitlines()]
    by_name = {row["method"]: row for row in rows}
    assert list(by_name) == ["ar", "other seed", "gumbel"]
    assert by_name["gumbel"]["strict"] and by_name["gumbel"]["same_pictures"] == 1
    assert by_name["gumbel"]["frechet_less_plain"] == [0, 0, 0] and by_name["gumbel"]["outside"] == []
    assert by_name["gumbel"]["tokens_a_pass"][0] > 1 == by_name["ar"]["tokens_a_pass"][0]
    assert by_name["ar"]["pictures"] == 5 and len(list(work.glob("*.npz"))) == 4 * 3

    # Stopped within the second turn: only what is missing is made, and the numbers are those of before.
    lost = sorted(work.glob("gumbel-*.npz"))[1]
    kept = dict(np.load(lost))
    lost.unlink()
    done, make = [], runs.make_batch
    monkeypatch.setattr(
        runs, "make_batch", lambda *args: done.append((args[1]["method"], args[3])) or make(*args)
    )
    runs.main([*command, "--methods", "gumbel", "--minutes", "0"])
    assert not done and not lost.exists()
    part = [json.loads(line) for line in (work / "quality.jsonl").read_text().splitlines()]
    assert [row["pictures"] for row in part] == [2, 2, 2]
    runs.main([*command, "--methods", "gumbel"])
    # Its first batch is made once more, for compiling.
    assert done == [("gumbel", 0), ("gumbel", 1)]
    np.testing.assert_array_equal(np.load(lost)["tokens"], kept["tokens"])
    again = [json.loads(line) for line in (work / "quality.jsonl").read_text().splitlines()]
    assert [row["frechet"] for row in again] == [row["frechet"] for row in rows]
    with pytest.raises(ValueError, match=r"another setup \(seed\)"):
        runs.main([*command, "--seed", "3"])
    with pytest.raises(ValueError, match="more --minutes"):
        runs.main([*command, "--work", str(tmp_path / "new"), "--minutes", "0"])
    assert "batch 3 of 3" in capsys.readouterr().out
