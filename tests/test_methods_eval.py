"""The comparison of all methods: its arithmetic, and all of it on tiny models."""

import json
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest

import lantern_jax
from eval import methods, quality
from eval.scatter import Point, scatter, ticks
from lantern_jax.checkpoints.store import save
from lantern_jax.metrics.distances import interval
from tests.tiny_checkpoint import SIDE, VQ, sharing_programs, tiny_checkpoint, vq_parameters


def test_intervals_cover_the_distance_and_shrink():
    """Of samples of one law, away from the reference by a known distance, over and over."""
    generator, widths, covered = np.random.default_rng(1), [], 0
    for count in (50, 400):
        for seed in range(20):
            made, real = generator.normal([1, 0], 1, (count, 2)), generator.normal(size=(count, 4, 2))
            distances = quality.replicated_distances(made, real, seed, replicates=200)
            distance, low, high = interval(distances)
            assert low <= distance <= high
            covered += low <= 1 <= high
        widths.append(high - low)
    assert covered >= 32
    assert widths[1] < 0.6 * widths[0]


def test_features_of_a_picture_do_not_depend_on_its_batch():
    pictures = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE, 3), np.uint8)
    read = quality.feature_reader(VQ, vq_parameters(), batch=2)
    features = read(pictures)
    assert features.shape == (3, 3 * VQ.codebook_dim)
    np.testing.assert_allclose(read(pictures[2:]), features[2:], rtol=1e-5)
    flat = read(np.full((1, SIDE, SIDE, 3), 90, np.uint8))[0]
    assert not np.allclose(features[0], flat)


def test_pooled_features_of_known_cells():
    cells = np.zeros((1, 2, 2, 1), np.float32)
    cells[0, :, :, 0] = [[0, 1], [2, 3]]
    np.testing.assert_allclose(quality.pool(cells), [[1.5, np.sqrt(1.25), 1.5]])


def test_methods_and_variants_are_told_apart():
    rows = methods.parse_methods("ar,lantern-g:lam=3,k=5,gumbel:tree=chain")
    assert rows == {
        "ar": {"method": "ar"},
        "lantern-g:lam=3,k=5": {"method": "lantern-g", "lam": 3.0, "k": 5},
        "gumbel:tree=chain": {"method": "gumbel", "tree": "chain"},
    }
    assert set(methods.parse_methods("")) == set(methods.lantern_jax.methods())
    for text, match in (
        ("owl", "unknown method 'owl'"),
        ("ar:wings=2", "'wings' is not a knob"),
        ("ar:k=many", "k 'many' is not valid: give a whole number"),
    ):
        with pytest.raises(ValueError, match=match):
            methods.parse_methods(text)


def test_sums_of_records_make_a_row():
    one = {"pictures": 2, "tokens": 32, "rounds": 10, "seconds": 1.0, "plain_seconds": 3.0, "substituted": 4,
           "distance": 2.0, "same": 24, "features": []}  # fmt: skip
    two = one | {"rounds": 20, "seconds": 2.0, "substituted": 0, "distance": 0.0}
    row = methods.summarize([one, two], [{"seconds": 2.0, "plain_seconds": 8.0}])
    assert row["tokens_a_pass"] == 60 / 30 and row["rounds"] == 7.5 and row["seconds"] == 0.75
    assert (
        row["speedup"] == 2
        and row["substituted"] == 1 / 16
        and row["distance"] == 0.5
        and row["same"] == 0.75
    )
    assert (row["single_seconds"], row["single_speedup"]) == (2, 4)


def test_the_plot_holds_every_point_between_its_axes():
    assert ticks(0.9, 4.2) == [0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5]
    points = [Point("a<b", 1, 2, 1.5, 2.5), Point("c", 3, 2, 1.9, 2.1, marked=True)]
    tree = ElementTree.fromstring(scatter(points, "title", "x", "y"))
    name = "{http://www.w3.org/2000/svg}"
    circles = tree.findall(f"{name}circle")
    assert [circle.get("cy") for circle in circles] == [circles[0].get("cy")] * 2
    assert float(circles[0].get("cx")) < float(circles[1].get("cx"))
    assert {"a<b", "c"} <= {text.text for text in tree.iter(f"{name}text")}


@pytest.mark.exhaustive  # A script for people; its parts are tested apart.
def test_the_whole_comparison_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    # One device compiles sooner.
    monkeypatch.setattr(lantern_jax, "load", sharing_programs(partial(lantern_jax.load, mesh="data=1")))
    model, out, figure = (
        save(tmp_path / "tiny", tiny_checkpoint()),
        tmp_path / "out.json",
        tmp_path / "out.svg",
    )
    monkeypatch.setattr(methods, "keep_compiled_programs", lambda: None)
    made, make = [], methods.Bench.make
    monkeypatch.setattr(
        methods.Bench,
        "make",
        lambda self, knobs, first, *rest: (
            made.append((knobs["method"], first)) or make(self, knobs, first, *rest)
        ),
    )
    common = [
        "--model",
        str(model),
        "--pictures",
        "4",
        "--batch",
        "2",
        "--out",
        str(out),
        "--plot",
        str(figure),
    ]
    methods.main([*common, "--methods", "gumbel", "--timing-pictures", "1"])
    kept = json.loads(out.read_text())
    rows = {row["method"]: row for row in kept["methods"]}
    assert list(rows) == ["ar", "other seed", "gumbel"]
    assert rows["ar"]["tokens_a_pass"] == 1 and rows["ar"]["speedup"] == 1 and rows["ar"]["same"] == 1
    # In float32 shared noise gives the very tokens of plain decoding.
    assert rows["gumbel"]["same"] == 1 and rows["gumbel"]["frechet"] == rows["ar"]["frechet"]
    assert rows["gumbel"]["tokens_a_pass"] > 1 and rows["gumbel"]["single_speedup"] > 0
    assert rows["other seed"]["same"] < 1 and rows["other seed"]["frechet"] != rows["ar"]["frechet"]
    assert all(row["low"] <= row["frechet"] <= row["high"] for row in rows.values())
    assert "gumbel" in figure.read_text() and "tokens a pass" in capsys.readouterr().out

    with pytest.raises(ValueError, match="--resume"):
        methods.main(common)
    # A run that was stopped within the second batch, and has another method to do.
    del kept["batches"]["gumbel"][1]
    out.write_text(json.dumps(kept))
    made.clear()
    monkeypatch.setattr(
        methods.Bench, "why_not", lambda self, knobs: "no" if knobs["method"] == "eagle" else ""
    )
    methods.main([*common, "--resume", "--methods", "gumbel,eagle"])
    assert made == [("gumbel", 0), ("ar", 2), ("gumbel", 2)]
    again = json.loads(out.read_text())["methods"]
    assert again[-1] == {"method": "eagle", "reason": "no"}
    assert again[2]["frechet"] == rows["gumbel"]["frechet"]
    with pytest.raises(ValueError, match="name a new file"):
        methods.main([*common, "--resume", "--seed", "3"])


def test_prompts_are_drawn_with_their_real_pictures():
    """Pictures that equal their prompts' real ones are at no distance in any replicate, however prompts differ."""
    made = np.random.default_rng(0).normal(size=(30, 3)) * [1, 5, 100]
    real = np.repeat(made[:, None], 2, axis=1)
    distances = quality.replicated_distances(made, real, replicates=20)
    # Each real one counts twice: n - 1 in place of 2 n - 1 is all that is left.
    assert distances.max() < 1e-3
    other = quality.replicated_distances(made[::-1], real, replicates=20)
    assert other[1:].min() > distances.max()
    # Whitened, a feature's unit does not matter.
    noise = np.random.default_rng(1).normal(size=(30, 3))
    both = [
        quality.replicated_distances((made + noise) * unit, real * unit, replicates=3) for unit in (1, 1000)
    ]
    np.testing.assert_allclose(both[0], both[1], rtol=1e-6)
