"""The comparison of methods: features, windows, intervals, and a whole run on a tiny model that is continued."""

import dataclasses
import json
from functools import partial
from itertools import product

import jax
import numpy as np
import pytest

import lantern_jax
from eval import methods, quality
from eval.methods import Bench, Setup
from lantern_jax.apps.metrics.distances import bootstrap_draws
from lantern_jax.apps.metrics.features import FeatureReader, Score
from lantern_jax.checkpoints.store import save
from lantern_jax.io.errors import LanternError
from tests.tiny_checkpoint import SIDE, VQ, sharing_programs, tiny_checkpoint, tiny_pipeline, vq_parameters

COUNT, WIDTH = 60, 3
PROMPTS = np.random.default_rng(0).normal(size=(COUNT, WIDTH))


def made(features, seconds=1.0, tokens=None):
    """Makes a setting's pictures; the nearer they lie to their prompts, the better they agree with them."""
    agreement = 1 / (1 + (features[:, :1] - PROMPTS[:, :1]) ** 2)
    batches = 6
    sums = {name: np.full(batches, COUNT / batches) for name in quality.SUMS}
    sums |= {"seconds": np.full(batches, seconds), "plain_seconds": np.ones(batches)}
    sums |= {"sampled": np.full(batches, 40.0)}
    tokens = np.zeros((COUNT, 4), int) if tokens is None else tokens
    return quality.Made(sums, tokens, {"classifier": features, "agreement": agreement})


@pytest.fixture(scope="module")
def sets():
    """Returns real pictures per prompt, and sets of the same prompts: plain decoding's of two seeds, far, narrow."""
    generator = np.random.default_rng(4)

    def drawn(spread=1.0):
        return PROMPTS + spread * generator.normal(size=(COUNT, WIDTH))

    real = np.stack([drawn() for _ in range(4)], axis=1)
    tokens = np.zeros((COUNT, 4), int)
    tokens[:15, 0] = 1
    names = {"ar": made(drawn()), "other seed": made(drawn()), "far": made(drawn() + 2, 0.5, tokens)}
    return real, names | {"narrow": made(drawn(0.1))}


def test_pooled_features_of_known_cells():
    cells = np.zeros((1, 2, 2, 1), np.float32)
    cells[0, :, :, 0] = [[0, 1], [2, 3]]
    np.testing.assert_allclose(quality.pool(cells), [[1.5, np.sqrt(1.25), 1.5]])


def test_features_of_a_picture_do_not_depend_on_its_batch():
    pictures = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE, 3), np.uint8)
    read = quality.feature_reader(VQ, vq_parameters(), batch=2)
    features = read(pictures)
    assert features.shape == (3, 3 * VQ.codebook_dim)
    np.testing.assert_allclose(read(pictures[2:]), features[2:], rtol=1e-5)
    flat = read(np.full((1, SIDE, SIDE, 3), 90, np.uint8))[0]
    assert not np.allclose(features[0], flat)


def distances(made, real, seed=0, replicates=20):
    draws = bootstrap_draws(len(made), replicates, seed)
    return quality.frechet_measure("", "", real).replicated(made, draws)


def test_prompts_are_drawn_with_their_real_pictures():
    """Pictures equal to their prompts' real ones have no distance in any replicate, however much prompts differ."""
    made = np.random.default_rng(0).normal(size=(30, 3)) * [1, 5, 100]
    real = np.repeat(made[:, None], 2, axis=1)
    # Each real one counts twice: n - 1 in place of 2 n - 1 is the only difference.
    assert distances(made, real).max() < 1e-3
    assert distances(made[::-1], real)[1:].min() > distances(made, real).max()
    # Features are whitened, so their units do not matter.
    noise = np.random.default_rng(1).normal(size=(30, 3))
    both = [distances((made + noise) * unit, real * unit, replicates=3) for unit in (1, 1000)]
    np.testing.assert_allclose(both[0], both[1], rtol=1e-6)


def test_only_settings_that_differ_are_outside(sets):
    real, settings = sets
    measures = [quality.frechet_measure("frechet", "classifier", real), quality.agreement_measure()]
    rows = quality.rows_of(settings, "ar", "other seed", measures, replicates=200)
    ar, far, narrow = (rows[name] for name in ("ar", "far", "narrow"))
    assert ar["outside"] == rows["other seed"]["outside"] == []
    assert far["outside"] == ["frechet", "agreement"]
    # Pictures nearer to what the prompts ask for than plain decoding's are outside as well.
    assert narrow["agreement_less_plain"][0] > narrow["windows"]["agreement"]
    assert "agreement" in narrow["outside"]
    assert ar["frechet_less_plain"] == [0, 0, 0] and far["frechet_less_plain"][1] > 0
    assert far["speedup"] == [2, 2, 2] and ar["speedup"] == [1, 1, 1]
    assert far["same_pictures"] == 0.75 and far["same_tokens"] == 1 - 15 / (4 * COUNT)
    assert far["tokens_a_pass"][0] == (40 - 10) / 10
    for value, low, high in (row[measure] for row in rows.values() for measure in ("frechet", "agreement")):
        assert low <= value <= high


def test_the_kernel_distance_is_the_mean_over_pairs_of_prompts(sets):
    """By brute force, including prompts drawn more than once, and in any units of the features."""
    real, made = sets[0][:6, :2], sets[1]["ar"].read["classifier"][:6]
    measure = quality.kernel_measure("kid", "classifier", real)
    in_other_units = quality.kernel_measure("kid", "classifier", 7 * real).of(7 * made)
    scale = quality.whitening(real.reshape(-1, WIDTH))
    real, read, made = real @ scale, made, made @ scale
    rows = np.array([0, 0, 3, 4, 4, 5])

    def kernel(xs, ys):
        return np.mean([(x @ y / WIDTH + 1) ** 3 for x, y in product(xs, ys)])

    pairs = [(i, j) for i in rows for j in rows if i != j]
    near = [kernel(made[[i]], made[[j]]) + kernel(real[i], real[j]) for i, j in pairs]
    across = [kernel(made[[i]], real[j]) + kernel(made[[j]], real[i]) for i, j in pairs]
    assert measure.of(read)(rows) == pytest.approx(np.mean(near) - np.mean(across), rel=1e-9)
    assert in_other_units(rows) == pytest.approx(measure.of(read)(rows), rel=1e-9)


def test_strict_and_relaxed_settings_are_told_apart():
    bench = Bench(Setup(pictures=1, batch=1), tiny_pipeline())
    given = {"ar": True, "eagle": True, "led": True, "near": False, "led near:tau=1": False, "zipar": False}
    for text, options in methods.named_settings(list(given)).items():
        assert bench.described(options)["strict"] == given[text], text


@pytest.mark.exhaustive
def test_a_run_continues_where_it_stopped(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    # One device compiles sooner.
    monkeypatch.setattr(lantern_jax, "load", sharing_programs(partial(lantern_jax.load, mesh="data=1")))

    def prepare(picture):
        return picture.astype(np.float32).mean((0, 1))[None, None]

    reader = FeatureReader("means", 3, prepare, lambda pictures: pictures[:, 0, 0])
    score = Score("red", lambda pictures, prompts: pictures[:, :, :, 0].mean((1, 2)) / 255)
    monkeypatch.setattr(methods, "demo_features", lambda: reader)
    monkeypatch.setattr(methods, "agreement_scores", lambda: score)
    monkeypatch.setattr(methods, "keep_compiled_programs", lambda: None)
    model, work, figure = save(tmp_path / "tiny", tiny_checkpoint()), tmp_path / "work", tmp_path / "plot.svg"
    command = ["--model", str(model), "--work", str(work), "--pictures", "5", "--batch", "2"]
    command += ["--replicates", "20", "--methods", "gumbel"]

    def rows():
        return [json.loads(line) for line in (work / "quality.jsonl").read_text().splitlines()]

    methods.main([*command, "--plot", str(figure)])
    first = rows()
    by_name = {row["method"]: row for row in first}
    assert list(by_name) == ["ar", "other seed", "gumbel"]
    # In float32 shared noise gives exactly the tokens of plain decoding.
    assert by_name["gumbel"]["strict"] and by_name["gumbel"]["same_pictures"] == 1
    assert by_name["gumbel"]["frechet_less_plain"] == [0, 0, 0] and by_name["gumbel"]["outside"] == []
    assert by_name["gumbel"]["tokens_a_pass"][0] > 1 == by_name["ar"]["tokens_a_pass"][0]
    assert by_name["ar"]["pictures"] == 5 and len(list(work.glob("*.npz"))) == 4 * 3
    assert by_name["other seed"]["same_tokens"] < 1 and by_name["ar"]["command"].endswith("--dtype float32")
    assert "gumbel" in figure.read_text()
    printed = capsys.readouterr().out
    assert "batch 3 of 3" in printed and "tokens per pass" in printed

    # Stopped within the second turn: only what is missing is made, beside plain decoding, and the numbers stay the
    # same.
    lost = sorted(work.glob("gumbel-*.npz"))[1]
    kept = dict(np.load(lost))
    lost.unlink()
    done, make = [], Bench.make
    monkeypatch.setattr(Bench, "make", lambda *args: done.append((args[1]["method"], args[3])) or make(*args))
    methods.main([*command, "--minutes", "0"])
    assert not done and not lost.exists()
    assert [row["pictures"] for row in rows()] == [2, 2, 2]
    # With an accelerator its first batch is made once more, for compiling.
    monkeypatch.setattr(methods, "_compiles_beside", lambda: True)
    methods.main(command)
    assert sorted(done) == [("ar", 0), ("ar", 1), ("gumbel", 0), ("gumbel", 1)]
    np.testing.assert_array_equal(np.load(lost)["tokens"], kept["tokens"])
    assert [row["frechet"] for row in rows()] == [row["frechet"] for row in first]
    with pytest.raises(ValueError, match=r"another setup \(seed\)"):
        methods.main([*command, "--seed", "3"])
    with pytest.raises(ValueError, match="more --minutes"):
        methods.main([*command, "--work", str(tmp_path / "new"), "--minutes", "0"])
    # What the checkpoint cannot do is reported, and is no error.
    described = Bench.described

    def without_eagle(self, options):
        if options["method"] == "eagle":
            raise LanternError("no drafter")
        return described(self, options)

    monkeypatch.setattr(Bench, "described", without_eagle)
    methods.main([*command, "--methods", "gumbel", "eagle"])
    assert "left out: eagle: no drafter" in capsys.readouterr().out and len(rows()) == 3
    retrained = jax.tree.map(lambda leaf: leaf + 1, tiny_checkpoint().target_params)
    save(model, dataclasses.replace(tiny_checkpoint(), target_params=retrained), overwrite=True)
    with pytest.raises(ValueError, match=r"another setup \(checkpoint\)"):
        methods.main(command)
