"""Picture sets in process: what is made, by whom, in which bytes; reading back, merging, continuing."""

import dataclasses
import io
import re
import shutil
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lantern_jax.apps.metrics.moments import Moments
from lantern_jax.apps.sets import shards, worker
from lantern_jax.apps.sets.plan import begin, check_plan, shard_paths
from lantern_jax.apps.sets.reading import SUMS_FILE, is_set, merge, read_set
from lantern_jax.apps.sets.request import SetRequest, open_set
from lantern_jax.apps.sets.shards import read_arrays, write_shard
from lantern_jax.apps.sets.worker import discard_damaged
from lantern_jax.engine.programs import NotRefillable
from lantern_jax.pipeline import plan as call_plan
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings.tuned import Found
from tests.sets.making import OPTIONS, READER, SUMS, a_plan, contents, make, refused
from tests.tiny_checkpoint import PROMPTS, SIDE, TOKENS, pipeline_on, tiny_pipeline


def archived(arrays) -> bytes:
    np.savez(content := io.BytesIO(), **arrays)
    return content.getvalue()


def copied(whole, directory, **changed) -> Path:
    """Copies a set, with other contents in the named files."""
    directory.mkdir(exist_ok=True)
    for name, content in contents(whole).items():
        (directory / name).write_bytes(changed.get(name, content))
    return directory


def test_the_pictures_are_those_of_generate(whole):
    made = tiny_pipeline().generate(list(PROMPTS), num=2, seed=3, **OPTIONS)
    pictures = list(read_set(whole))
    assert [picture.number for picture in pictures] == list(range(14))
    assert tuple(picture.prompt for picture in pictures) == made.prompts
    np.testing.assert_array_equal(np.stack([picture.tokens for picture in pictures]), made.tokens)
    drawn = np.stack([picture.picture for picture in pictures])
    assert drawn.dtype == np.uint8 and drawn.shape == (14, SIDE, SIDE, 3)
    assert np.abs(drawn.astype(int) - made.pictures).max() <= 1
    assert len({picture.picture.tobytes() for picture in pictures}) == 14


def test_shards_hold_pictures_that_say_what_they_are(whole):
    assert is_set(whole) and not is_set(whole.parent)
    names = {f"shard-{shard:05d}{suffix}" for shard in range(5) for suffix in (".tar", ".npz")}
    assert set(contents(whole)) == {*names, "set.json"}
    with tarfile.open(whole / "shard-00001.tar") as tar:
        assert tar.getnames() == ["00000003.png", "00000004.png", "00000005.png"]
        entry = tar.getmember("00000004.png")
        assert (entry.mtime, entry.uid, entry.gid, entry.uname) == (0, 0, 0, "")
        image = Image.open(io.BytesIO(tar.extractfile(entry).read()))
    assert image.text == {"prompt": PROMPTS[2], "number": "4"}
    arrays = read_arrays(whole, a_plan(), 4)
    assert arrays["numbers"].tolist() == [12, 13] and arrays["tokens"].shape == (2, TOKENS)
    assert {arrays[name].dtype.name for name in ("numbers", "tokens", "rounds")} == {"int32"}
    assert (arrays["rounds"] > 0).all()


def test_the_bytes_do_not_depend_on_the_time_or_the_batch(whole, tmp_path, monkeypatch):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1e6)
    monkeypatch.setattr(call_plan, "PIECE_SECONDS", 0)
    make(tmp_path / "again", options={"batch": 1})
    assert contents(tmp_path / "again") == contents(whole)


def test_workers_make_the_same_files(whole, tmp_path):
    directory, workers = tmp_path / "set", 4
    for number in range(workers, 0, -1):
        before = contents(directory) if directory.exists() else {}
        make(directory, worker=f"{number}/{workers}")
        after = contents(directory)
        assert before.items() <= after.items()
        made = {name for name in after if name.startswith("shard") and name not in before}
        shards = range(number - 1, 5, workers)
        assert made == {path.name for shard in shards for path in shard_paths(directory, a_plan(), shard)}
        if number > 1:
            with pytest.raises(ValueError, match=r"lacks \d of 5 shards \(number 0"):
                merge(directory)
            with pytest.raises(ValueError, match="lacks"):
                next(read_set(directory))
    assert contents(directory) == contents(whole)


def test_several_devices_make_the_same_tokens_in_refilled_slots(whole, tmp_path):
    directory, pipeline, options = tmp_path / "set", pipeline_on(2), {"method": "ar", **OPTIONS}
    plan = a_plan(settings=pipeline.settings(options).to_json())
    make(directory, plan, pipeline=pipeline, options=options)
    kinds = [key.kind for key in pipeline.engine.programs]
    assert kinds.count("start") == 1 and "refill" in kinds
    ours, theirs = list(read_set(directory)), list(read_set(whole))
    for one, another in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one.tokens, another.tokens)
        assert np.abs(one.picture.astype(int) - another.picture).max() <= 1


def test_a_set_stopped_between_any_two_steps_can_be_completed(whole, tmp_path, monkeypatch):
    """Ctrl-C after every piece of work in turn, and while either file of a shard is written."""
    monkeypatch.setattr(call_plan, "PIECE_SECONDS", 0)
    directory = tmp_path / "set"

    class Stop(BaseException):
        pass

    def progress(now):
        if next(left, None) is None:
            raise Stop

    write = shards.write_file

    def write_and_stop(path, content, synced):
        if stops % 3 == 0:
            # As a killed process leaves it.
            path.with_name(f".{path.name}.0123abcd.part").write_bytes(b"half")
            raise Stop
        write(path, content, synced=synced)
        if stops % 3 == 1:
            raise Stop

    monkeypatch.setattr(shards, "write_file", write_and_stop)
    for stops in range(60):
        left = iter(range(4 + stops))
        try:
            make(directory, progress=progress)
            break
        except Stop:
            pass
    assert 3 < stops < 59
    assert contents(directory) == contents(whole)
    assert make(directory) == 0


@pytest.fixture(scope="module")
def in_folders(tmp_path_factory) -> Path:
    """The set of ``whole`` with its pictures in folders."""
    directory = tmp_path_factory.mktemp("sets") / "folders"
    assert make(directory, a_plan(tar=False)) == 14
    return directory


def test_pictures_in_folders_are_those_in_tars(whole, in_folders):
    assert (in_folders / "shard-00001").is_dir() and not list(in_folders.glob("*.tar"))
    for shard in range(5):
        with tarfile.open(whole / f"shard-{shard:05d}.tar") as tar:
            held = {member.name: tar.extractfile(member).read() for member in tar}
        assert contents(in_folders / f"shard-{shard:05d}") == held
    for one, another in zip(read_set(in_folders), read_set(whole), strict=True):
        assert (one.number, one.prompt) == (another.number, another.prompt)
        np.testing.assert_array_equal(one.tokens, another.tokens)
    assert merge(in_folders).pictures == 14
    (in_folders / SUMS_FILE).unlink()


@pytest.mark.parametrize("damage", ["shorter", "missing", "a folder", "all of them"])
def test_a_damaged_picture_in_a_folder_is_found_and_made_again(in_folders, tmp_path, damage):
    directory, plan, told = tmp_path / "set", a_plan(tar=False), []
    shutil.copytree(in_folders, directory)
    file = directory / "shard-00001" / "00000004.png"
    content = file.read_bytes()
    file.unlink()
    if damage == "shorter":
        file.write_bytes(content[:-1])
    elif damage == "a folder":
        file.mkdir()
    elif damage == "all of them":
        shutil.rmtree(file.parent)
    refused(lambda: list(read_set(directory)), *{"all of them": ["lacks 1 of 5"]}.get(damage, []))
    discard_damaged(directory, plan, range(5), told.append)
    assert make(directory, plan) == 3 and len(told) == (damage != "all of them")
    assert contents(directory) == contents(in_folders)


def test_a_stop_loses_only_unfinished_pictures(in_folders, tmp_path, monkeypatch):
    """Pictures that are known but in no shard are kept at a stop; those kept wrongly are decoded again."""
    monkeypatch.setattr(call_plan, "PIECE_SECONDS", 0)
    directory, plan, known = tmp_path / "set", a_plan(tar=False, shard_size=14), []

    def stop(now):
        known.append(now.pictures)
        if now.pictures >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(directory, plan, progress=stop)
    (file,) = directory.glob(".*.kept")
    kept = np.load(file)["numbers"]
    assert len(kept) == known[-1] >= 6 and plan.missing(directory) == [0]
    # Now another worker's, beside a damaged file and one with another model's codes.
    file.rename(directory / ".worker-7-of-9.kept")
    (directory / ".worker-1-of-1.kept").write_bytes(b"PK")
    wrong = np.full((14, TOKENS), 10**6, np.int32)
    many = {"numbers": np.arange(14, dtype=np.int32), "tokens": wrong, "rounds": wrong[:, 0]}
    (directory / ".worker-2-of-9.kept").write_bytes(archived(many))
    stream, asked = call_plan.Plan.stream, []

    def watched(self, job, numbers, rows):
        asked.extend(numbers.tolist())
        return stream(self, job, numbers, rows)

    monkeypatch.setattr(call_plan.Plan, "stream", watched)
    assert make(directory, plan) == 14
    assert sorted([*asked, *kept.tolist()]) == list(range(14)), "some were decoded again, or not at all"
    made = contents(directory)
    assert set(made) == {"set.json", "shard-00000.npz"} | {f"shard-00000/{n:08d}.png" for n in range(14)}
    theirs = {Path(name).name: content for name, content in contents(in_folders).items()}
    assert all(content == theirs[Path(name).name] for name, content in made.items() if name.endswith(".png"))


def test_known_pictures_are_kept_again_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(call_plan, "PIECE_SECONDS", 0)
    monkeypatch.setattr(worker, "EVERY", 0.0)
    kept, keep = [], worker.keep
    monkeypatch.setattr(
        worker, "keep", lambda folder, who, held: (kept.append(len(held)), keep(folder, who, held))
    )
    make(tmp_path / "set")
    assert len(kept) > 5 and max(kept) >= 2 and kept[-1] == 0


def test_sums_of_shards_are_those_of_the_set(whole, tmp_path):
    expected = Moments.of(READER.features(picture.picture for picture in read_set(whole)))
    merged = merge(whole)
    found = np.load(whole / SUMS_FILE)
    (whole / SUMS_FILE).unlink()
    for sums in (merged.sums, Moments.from_arrays(found, f"{SUMS}/")):
        assert sums.count == merged.pictures == 14
        np.testing.assert_allclose(sums.total, expected.total, rtol=1e-12)
        np.testing.assert_allclose(sums.outer, expected.outer, rtol=1e-12)
    assert merged.rounds == sum(read_arrays(whole, a_plan(), shard)["rounds"].sum() for shard in range(5))


def test_without_sums_and_without_refill(whole, tmp_path, monkeypatch):
    """A drafting whose state cannot be refilled makes the same set, batch by batch."""

    def refuse(*arguments):
        raise NotRefillable("one line")

    monkeypatch.setattr(tiny_pipeline().engine, "refill", refuse)
    plan, directory = a_plan(sums=None), tmp_path / "set"
    make(directory, plan)
    for path in sorted(whole.glob("*.tar")):
        assert (directory / path.name).read_bytes() == path.read_bytes()
    assert merge(directory).sums is None


def damages(whole):
    """Yields (a file of a set, its damaged contents)."""
    tar, arrays = "shard-00001.tar", "shard-00001.npz"
    content, held = contents(whole), read_arrays(whole, a_plan(), 1)
    # Cut in the last picture, in the first, after and in its header, and to nothing; padding follows the pictures.
    yield from ((tar, content[tar][:most]) for most in (2500, 900, 512, 100, 0))
    yield "shard-00004.tar", bytes(len(content["shard-00004.tar"]))
    yield "shard-00003.npz", content["shard-00003.npz"][:500]
    for name in (tar, arrays):
        yield name, content[name.replace("1", "2")]
    yield arrays, archived(held | {"rounds": held["rounds"][:-1]})
    for part, wrong in (
        ("total", np.full(3, np.nan)), ("total", np.array(["a"] * 3)), ("outer", np.full((3, 3), np.inf)),
        ("outer", np.zeros((3, 2))), ("count", np.int64(99)),
    ):  # fmt: skip
        yield arrays, archived(held | {f"{SUMS}/{part}": wrong})


def test_a_damaged_shard_is_named_and_made_again(whole, tmp_path):
    for number, (name, content) in enumerate(damages(whole)):
        told, directory = [], copied(whole, tmp_path / str(number), **{name: content})
        for read in (merge, lambda directory: list(read_set(directory))):
            with pytest.raises(ValueError, match=rf"{name} is damaged: remove it"):
                read(directory)
        # Another worker's shard is left alone.
        discard_damaged(directory, a_plan(), [0, 2], told.append)
        assert not told
        discard_damaged(directory, a_plan(), range(5), told.append)
        assert told == [f"shard {int(name[6:11])} of {directory} is damaged: it is made again"]
        assert make(directory) == len(a_plan().numbers(int(name[6:11])))
        assert contents(directory) == contents(whole)
        discard_damaged(directory, a_plan(), range(5), told.append)
        assert len(told) == 1
    (directory / "shard-00001.npz").unlink()
    with pytest.raises(ValueError, match=r"lacks 1 of 5 shards \(number 1\)"):
        merge(directory)
    # With other features than the shards before.
    other = {f"{SUMS}/total": np.zeros(2), f"{SUMS}/outer": np.zeros((2, 2))}
    content = archived(read_arrays(whole, a_plan(), 1) | other)
    with pytest.raises(ValueError, match=r"shard-00001\.npz is damaged"):
        merge(copied(whole, directory, **{"shard-00001.npz": content}))


def test_a_picture_of_another_prompt_is_refused(whole, tmp_path):
    directory = tmp_path / "set"
    plan = a_plan(prompts=("night", *PROMPTS[1:]), shard_size=14, sums=None)
    begin(directory, plan)
    pictures = [picture.picture for picture in read_set(whole)]
    tokens = np.zeros((14, TOKENS), np.int32)
    write_shard(directory, a_plan(shard_size=14), 0, pictures, tokens, tokens[:, 0])
    with pytest.raises(ValueError, match="says that it is number 0 of prompt 'a lake', not 0 of 'night'"):
        merge(directory)


def test_the_example_of_the_page_runs(whole, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).resolve().parents[2] / "docs" / "sets.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("pictures").symlink_to(whole)
    exec(compile(example, "sets.md", "exec"), {})
    assert capsys.readouterr().out.count(f"({SIDE}, {SIDE}, 3)") == 14


def test_the_plan_has_the_tuned_settings_that_are_used(tiny_folder, tiny_loaded, monkeypatch):
    request = SetRequest(str(tiny_folder), PROMPTS, {"batch": 4, "rule": None})
    opened = open_set(request)
    assert (opened.options, opened.notes, opened.reader) == ({"batch": 4, "rule": None}, (), None)
    found = Found({"method": "jacobi:nodes=3"}, "tuned: a window")
    monkeypatch.setattr(Pipeline, "tuning", lambda self, pictures, **options: found)
    opened = open_set(request)
    assert opened.options["method"] == "jacobi:nodes=3" and opened.notes == ("tuned: a window",)
    assert opened.plan.settings == tiny_pipeline().settings({"method": "jacobi:nodes=3"}).to_json()


def test_a_set_continues_with_the_guesses_that_were_chosen_for_it(
    tiny_folder, tiny_loaded, tmp_path, monkeypatch
):
    request, pipeline = SetRequest(str(tiny_folder), PROMPTS, OPTIONS), tiny_pipeline()
    monkeypatch.setattr(pipeline, "_chooses", True)
    found = pipeline.tuning(len(PROMPTS), **OPTIONS)
    other = next(row.method for row in found.rows if row.method != found.options["method"])
    chosen = pipeline.settings({"method": other, **OPTIONS}).to_json()
    begun = dataclasses.replace(open_set(request).plan, settings=chosen)
    begin(tmp_path / "set", begun)
    opened = open_set(request, tmp_path / "set")
    assert opened.plan == begun and opened.notes == (f"auto: {other}, as the set was begun",)
    check_plan(tmp_path / "set", opened.plan)
