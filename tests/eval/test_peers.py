"""``eval.peers`` without a clone: what it asks for, forced accept lengths, extrapolation, ratios, table and file."""

import json
from collections import Counter

import pytest

from eval import peers
from eval.peer_clones import (
    LLAMAGEN,
    ForcedLuck,
    Sample,
    Way,
    extrapolated,
)
from lantern_jax.io.errors import LanternError


@pytest.fixture
def clone(tmp_path):
    """Returns a folder with the names that a clone of LlamaGen has, and code of another kind."""
    for file in LLAMAGEN.files:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise ImportError('no such name')\n")
    return tmp_path


def test_rows_without_their_clone_are_left_out_or_refused_if_asked_for(clone):
    options = peers.parsed(["--llamagen", str(clone)])
    (left,) = [peers._needs(*part[:2]) for part in peers._clones(options) if part[2] is None]
    assert left.startswith(
        "lantern-ar, lantern, lantern++-57, lantern++: give --lantern DIR, a clone of https://"
    )
    with pytest.raises(LanternError, match=r"^lantern\+\+: give --lantern DIR"):
        peers.parsed(["--llamagen", str(clone), "--only", "lantern++", "ours"])
    assert peers.parsed(["--only", "ours", "ours-tree", "--batch", "8", "1"]).batch == [1, 8]


def test_a_round_accepts_as_many_candidates_as_were_drawn_for_it():
    def lengths(chances, rounds):
        """Yields what a verification of three candidates on each of six levels accepts, as the official loop does."""
        luck = ForcedLuck(chances)
        for _ in range(rounds):
            luck.begin()
            accepted = 0
            while accepted < 6 and any(luck.random() <= 1e-3 for _ in range(3)):
                accepted += 1
            yield accepted

    assert set(lengths((0, 0, 1), 20)) == {2} and set(lengths((1,), 20)) == {0}
    counts = Counter(lengths((0.5, 0, 0, 0.25, 0, 0.25), 400))
    assert set(counts) == {0, 3, 5} and 150 < counts[0] < 250


def test_what_is_stopped_early_pays_its_prompt_once():
    # A prompt of 3 s and tokens of 2 s.
    assert extrapolated((2, 3 + 2 * 2), (10, 3 + 10 * 2), 256) == 3 + 256 * 2
    assert extrapolated((2, 7), (10, 6), 256) == 7


def row(name, batch, seconds):
    samples = [Sample(value, 1e3 * value, 3.0) for value in seconds]
    return peers.row_of(Way(name, f"title of {name}", lambda *_: samples[0]), batch, samples)


def test_ratios_are_taken_turn_by_turn_and_lanterns_single_picture_stands_for_any_batch():
    rows = peers.compared([
        row("llamagen", 1, (10, 20, 12)), row("lantern++", 1, (4, 8, 6)), row("ours", 1, (1, 4, 2)),
        row("ours", 8, (0.5, 0.25, 0.75)), row("llamagen", 8, (2, 2, 3)),
    ])  # fmt: skip
    assert [line["times_llamagen"] for line in rows] == [1, 2.5, 6, 4, 1]
    assert [line["times_lantern++"] for line in rows] == [0.4, 1, 3, 12, 3]
    assert [line["seconds"] for line in rows] == [12, 6, 2, 0.5, 2]
    assert peers.compared([row("ours", 8, (1, 1))])[0]["times_lantern++"] is None
    assert peers.cells_of(rows[3]) == ("ours", "8", "500", "3.00", "0.5", "4", "12")


def test_a_call_prints_the_table_and_what_it_rests_on_and_writes_the_same(tmp_path, monkeypatch, capsys):
    ways = [
        Way("ours", "lantern_jax, plain decoding", lambda repeat, rounds: Sample(2.0 + repeat, rounds)),
        Way("ours-tree", "lantern_jax, a tree", lambda repeat, rounds: Sample(1.0, rounds, 3.0)),
    ]
    monkeypatch.setattr(peers.Peers, "ways", lambda self, batch: ways)
    out = tmp_path / "peers.json"
    peers.main(["--size", "tiny", "--batch", "8", "--rounds", "5", "--out", str(out)])
    told, report = capsys.readouterr(), json.loads(out.read_text())
    assert [(line["row"], line["batch"], line["seconds"]) for line in report["rows"]] == [
        ("ours", 8, 3.0), ("ours-tree", 8, 1.0),
    ]  # fmt: skip
    assert "ours-tree: lantern_jax, a tree" in told.out and peers.NOT_COUNTED in told.out
    assert "replaced: lantern_jax: random weights" in told.out and "--rounds 5" in told.out
    assert "left out: llamagen, strongest: give --llamagen DIR" in told.out
    assert (
        len(report["left_out"]) == 2
        and report["versions"]["jax"]
        and "lantern_jax, a tree, turn 3" in told.err
    )


def test_official_code_that_does_not_run_costs_its_rows_alone(clone, monkeypatch, capsys):
    pytest.importorskip("torch", reason="the official programs are PyTorch's")
    plain = Way("ours", "lantern_jax, plain decoding", lambda repeat, rounds: Sample(1.0, 1.0))
    monkeypatch.setattr(peers.Peers, "_ours", lambda self, name, batch: plain)
    words = ["--llamagen", str(clone), "--size", "tiny", "--batch", "1", "--only", "llamagen", "ours"]
    peers.main(words)
    told = capsys.readouterr().out
    assert "left out: llamagen: ImportError: no such name\n" in told and "LlamaGen at unknown" in told
    with pytest.raises(
        LanternError, match=r"^nothing could be measured: llamagen: ImportError: no such name$"
    ):
        peers.main(words[:-1])
