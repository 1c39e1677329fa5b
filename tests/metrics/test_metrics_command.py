"""``lantern metrics``: with a reader of colours, and what it refuses."""

import contextlib
import json
import re

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from lantern_jax.apps.commands import report
from lantern_jax.apps.commands.main import main
from lantern_jax.apps.metrics import clip_scores, comparison, protocols, registry, statistics
from lantern_jax.apps.metrics.distances import kernel_distance, precision_recall
from lantern_jax.apps.metrics.features import FeatureReader, Score
from lantern_jax.apps.metrics.frechet import Normal, frechet_distance
from lantern_jax.apps.metrics.preprocessing import lantern_square
from lantern_jax.io.errors import LanternError
from tests.command import assert_refused, must_not_run

COUNT = 12


def colours(weights, preprocessing):
    """Returns a reader of the means of the three colours; the second preprocessing takes them over the upper half."""

    def prepare(picture):
        picture = picture[: len(picture) // 2] if preprocessing == "upper" else picture
        return picture.reshape(-1, 3).mean(axis=0, dtype=np.float32)[None, None]

    return FeatureReader(f"colours, {preprocessing}", 3, prepare, lambda x: x[:, 0, 0], 5)


def brightness(weights):
    assert weights is None or weights.name == "weights"

    def score(pictures, prompts):
        assert all(prompts) and len(prompts) == len(pictures)
        return np.array([picture.mean() for picture in pictures])

    return Score("brightness", score)


@pytest.fixture(autouse=True)
def kinds(monkeypatch):
    readers = registry.READERS.theirs
    whole = registry.ReaderKind("colours", colours, None, ("whole", "upper"))
    monkeypatch.setitem(readers, "colours", whole)
    heavy = registry.ReaderKind("colours", colours, "file of colours", ("whole",))
    monkeypatch.setitem(readers, "heavy", heavy)
    monkeypatch.setitem(registry.SCORES.theirs, "brightness", registry.ScoreKind("mean level", brightness))
    level = registry.ScoreKind("level", brightness, "file of levels")
    monkeypatch.setitem(registry.SCORES._ours, "clip-lantern", level)
    monkeypatch.setattr("lantern_jax.devices.compilation.keep_compiled_programs", lambda: None)
    monkeypatch.setattr(report, "working", lambda text: contextlib.nullcontext())


def write_folder(folder, seed, count=COUNT, side=8, prompts=None):
    folder.mkdir()
    pictures = np.random.default_rng(seed).integers(0, 200 + 5 * seed, (count, side, side, 3), np.uint8)
    for number, picture in enumerate(pictures):
        texts = PngImagePlugin.PngInfo()
        if prompts:
            texts.add_text("prompt", prompts[number])
            texts.add_text("number", str(number))
        Image.fromarray(picture).save(folder / f"{number}.png", pnginfo=texts)
    return pictures


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    return main(["metrics", *map(str, arguments)])


def test_numbers_are_those_of_the_functions(folder, capsys):
    made, real = write_folder(folder / "made", 1), write_folder(folder / "real", 2, COUNT + 3)
    arguments = ("made", "--reference", "real", "--features", "colours", "--neighbours", 2, "--strict")
    assert run(*arguments, "--out", "numbers.json", "--save-reference", "stats.npz") == 0
    [row] = json.loads((folder / "numbers.json").read_text())["distances"]
    made, real = made.mean((1, 2)).astype(np.float32), real.mean((1, 2)).astype(np.float32)
    assert (row["reader"], row["pictures"], row["reference_pictures"]) == ("colours, whole", 12, 15)
    expected = frechet_distance(Normal.of_features(made), Normal.of_features(real))
    assert row["frechet"] == pytest.approx(expected, rel=1e-5)
    assert row["frechet_interval"][0] < expected < row["frechet_interval"][1]
    assert row["kid"]["mean"] == pytest.approx(kernel_distance(made, real).mean, rel=1e-4)
    assert (row["kid"]["size"], row["kid"]["subsets"]) == (12, 100)
    among = precision_recall(made, real, k=2, strict=True)
    assert (row["precision"], row["recall"], row["k"]) == (among.precision, among.recall, 2)
    shown = capsys.readouterr().out
    for text in ("colours, whole", "12, reference 15", f"{expected:.4f} [", "(k 2, <)", "made against real"):
        assert text in shown

    # The reader gives three numbers.
    assert row["too_few"] is None and "too few" not in shown
    write_folder(folder / "few", 1, 3)
    assert run("few", *arguments[1:]) == 0
    assert "too few the reader gives 3 numbers, whose" in " ".join(capsys.readouterr().out.split())

    # The saved reference gives the same, also after its pictures are gone.
    (folder / "real").rename(folder / "away")
    assert run("made", "--reference", "stats.npz", *arguments[3:], "--out", "again.json") == 0
    assert json.loads((folder / "again.json").read_text())["distances"] == [row]
    # Saved statistics may also be the set that is measured.
    assert run("stats.npz", "--reference", "stats.npz", "--features", "colours") == 0
    assert "precision 1.0000" in " ".join(capsys.readouterr().out.split())


def test_scores_are_means_over_pictures_with_their_prompts(folder, capsys):
    (folder / "prompts.txt").write_text("\n".join(f"prompt {number}" for number in range(COUNT)))
    pictures = write_folder(folder / "made", 1)
    assert run("made", "--scores", "brightness", "--prompts", "prompts.txt", "--out", "a.json") == 0
    [score] = json.loads((folder / "a.json").read_text())["scores"]
    values = pictures.mean((1, 2, 3))
    assert score["mean"] == pytest.approx(values.mean()) and score["pictures"] == COUNT
    low, high = score["interval"]
    assert high - low == pytest.approx(2 * 1.96 * values.std(ddof=1) / np.sqrt(COUNT))
    assert f"{values.mean():.4f} [" in capsys.readouterr().out
    write_folder(folder / "told", 1, prompts=[f"prompt {number}" for number in range(COUNT)])
    assert run("told", "--scores", "brightness", "--out", "b.json") == 0
    assert json.loads((folder / "b.json").read_text())["scores"] == [score]


def test_a_preset_prepares_the_pictures_of_its_scores(folder):
    pictures = write_folder(folder / "made", 1, side=300, prompts=["a lake"] * COUNT)
    (folder / "weights").write_text("")
    common = ("made", "--scores", "clip-lantern,brightness", "--weights", "weights", "--preset", "lantern")
    assert run(*common, "--out", "a.json") == 0
    clip, plain = json.loads((folder / "a.json").read_text())["scores"]
    assert clip["mean"] == pytest.approx(np.mean([lantern_square(picture) for picture in pictures]))
    assert plain["mean"] == pytest.approx(pictures.mean())


REFUSED = {
    "nothing to do": ("made", "--reference SET or --scores"),
    "no such set": ("nowhere --reference made", "nowhere is not a folder"),
    "features": ("made --reference made --features eyes", "unknown features 'eyes'"),
    "score": ("made --scores beauty", "unknown score 'beauty'"),
    "preset": ("made --reference made --preset mine", "unknown preset 'mine'"),
    "preset without its weights": ("made --reference made --preset adm", "inception needs weights"),
    "preprocessing": ("made --reference made --features colours --preprocessing tf", "choose one of whole, upper"),
    "missing weights": ("made --reference made --features heavy", "fetch file of colours"),
    "weights for nothing": ("made --reference made --features colours --weights weights", "leave it out"),
    "weights of which": (
        "made --reference made --features heavy --scores clip-lantern --weights weights",
        "give heavy=FILE and clip-lantern=FILE",
    ),
    "foreign prompts": ("told --scores brightness --prompts p.txt", "picture 1 is of 'a hill'"),
    "prompts for nothing": ("made --reference made --prompts p.txt", "--prompts are for --scores"),
    "out exists": ("made --reference made --features colours --out p.txt", "--overwrite"),
    "features without reference": ("made --scores brightness --features colours", "--reference"),
    "neighbours": ("made --reference made --neighbours 0", "whole number from 1 to"),
    "scores of statistics": ("stats.npz --scores brightness", "holds no pictures to score"),
    "statistics of another reader": (
        "made --reference stats.npz --features colours --preprocessing upper",
        "was read by 'colours, whole', not by 'colours, upper'",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def clutter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clutter")
    write_folder(folder / "made", 1)
    write_folder(folder / "told", 1, 2, prompts=["a lake", "a hill"])
    (folder / "p.txt").write_text("a lake\na house\n")
    (folder / "weights").write_text("")
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_in_one_line(name, clutter, capsys, monkeypatch):
    monkeypatch.chdir(clutter)
    if not (clutter / "stats.npz").exists():
        arguments = ("made", "--reference", "made", "--features", "colours")
        assert run(*arguments, "--save-reference", "stats.npz") == 0
    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in clutter.rglob("*")}
    line, words = REFUSED[name]
    assert run(*line.split(), *(() if "--out" in line else ("--out", "new.json"))) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and words in told.err and not told.out
    assert {path: path.stat().st_mtime_ns for path in clutter.rglob("*")} == before


@pytest.mark.parametrize(("line", "words"), [
    ("made --reference theirs.npz --save-reference new.npz", "use it as it is, without --save-reference"),
    ("made --reference made --scores clip --weights clip=weights", ". holds no tokenizer"),
    ("made --reference made --scores clip-lantern --weights weights", "weights holds no levels"),
    ("made --reference made --scores brightness --prompts few.txt", "picture 11 has no prompt"),
])  # fmt: skip
def test_a_wrong_file_is_reported_before_features_are_read(line, words, folder, capsys, monkeypatch):
    def build(weights):
        raise LanternError(f"{weights} holds no levels: give another file")

    write_folder(folder / "made", 1, prompts=["a lake"] * COUNT)
    (folder / "weights").write_text("")
    (folder / "few.txt").write_text("a lake\n" * (COUNT - 1))
    np.savez(folder / "theirs.npz", mu=np.zeros(3), sigma=np.eye(3))
    assert run("made", "--reference", "made", "--features", "colours", "--save-reference", "stats.npz") == 0
    kind = registry.ScoreKind("level", build, "file of levels")
    monkeypatch.setitem(registry.SCORES._ours, "clip-lantern", kind)
    monkeypatch.setattr(statistics, "read_pictures", must_not_run)
    capsys.readouterr()
    assert words in assert_refused(["metrics", *line.split(), "--features", "colours"], capsys)


def test_a_file_without_features_gives_the_frechet_distance_alone(folder, capsys):
    made = write_folder(folder / "made", 1).mean((1, 2))
    np.savez(folder / "theirs.npz", mu=made.mean(axis=0) + 3, sigma=np.cov(made, rowvar=False))
    assert run("made", "--reference", "theirs.npz", "--features", "colours") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "12, reference not known, taken to be of this reader" in shown
    assert "Fréchet distance 27.0000" in shown
    assert "kid, precision and recall not known" in shown


def test_numbers_that_cannot_be_written_are_shown(folder, capsys, monkeypatch):
    def full(files):
        raise OSError("cannot write a.json: the disk is full")

    write_folder(folder / "made", 1)
    monkeypatch.setattr("lantern_jax.apps.commands.metrics.write_files", full)
    line = ("made", "--reference", "made", "--features", "colours", "--out", "a.json")
    assert run(*line) != 0
    printed = capsys.readouterr()
    assert "precision" in printed.out and "disk is full" in printed.err


def test_help_names_everything_there_is(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert run("--help") == 0
    words = re.split(r"[\s,;)]+", capsys.readouterr().out)
    kinds = (registry.READERS, registry.SCORES, protocols.PRESETS)
    names = {name for kind in kinds for name in kind} - {"colours", "heavy", "brightness"}
    names |= {choice for kind in registry.READERS.values() for choice in kind.preprocessings}
    assert names - {"", "whole", "upper"} <= set(words)


def test_cmmd_has_its_own_reader(folder, capsys, monkeypatch):
    monkeypatch.setattr(comparison, "cmmd", lambda made, real: float(len(made) + len(real) / 100))
    monkeypatch.setattr(clip_scores, "cmmd_features", lambda weights: colours(weights, "whole"))
    write_folder(folder / "made", 1), write_folder(folder / "real", 1, COUNT + 3)
    (folder / "weights").write_text("")
    assert run("made", "--reference", "real", "--features", "clip", "--weights", "weights") == 0
    shown = capsys.readouterr().out
    assert "CMMD" in shown and "12.1500" in shown and "precision" not in shown and "KID" not in shown


def test_the_adm_preset_needs_one_size(folder, capsys, monkeypatch):
    kind = registry.READERS["inception"]
    own = registry.ReaderKind("", colours, None, kind.preprocessings, "FID")
    monkeypatch.setitem(registry.READERS._ours, "inception", own)
    write_folder(folder / "small", 1, 12, 8), write_folder(folder / "large", 1, 12, 9)
    assert run("small", "--reference", "large", "--preset", "adm") == 2
    assert "measure 8 x 8 and 9 x 9" in capsys.readouterr().err
    write_folder(folder / "small" / "more", 2, 1, 9)
    assert run("small", "--reference", "large", "--preset", "adm") == 2
    assert "measure several sizes and 9 x 9" in capsys.readouterr().err
    assert run("large", "--reference", "large", "--preset", "adm") == 0
    assert "FID" in capsys.readouterr().out
