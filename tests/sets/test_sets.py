"""Picture sets in process: what is made, by whom, in which bytes; reading back, continuing."""

import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lantern_jax.apps.sets import shards
from lantern_jax.apps.sets.opening import open_set
from lantern_jax.apps.sets.reading import is_set, read_set
from lantern_jax.apps.sets.set_plan import begin, shard_paths
from lantern_jax.apps.sets.shards import read_shard_arrays, write_shard
from lantern_jax.pipeline import plan as call_plan
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings.tuned import Found
from tests.refused import refused, refused_with
from tests.sets.making import OPTIONS, a_plan, contents, make
from tests.tiny_checkpoint import PROMPTS, SIDE, TOKENS, tiny_pipeline


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
    names = {f"shard-{number // 3:05d}/{number:08d}.png" for number in range(14)}
    assert set(contents(whole)) == {"set.json", *(f"shard-{shard:05d}.npz" for shard in range(5)), *names}
    with Image.open(whole / "shard-00001/00000004.png") as image:
        assert image.text == {"prompt": PROMPTS[2], "number": "4"}
    arrays = read_shard_arrays(whole, a_plan(), 4)
    assert arrays["numbers"].tolist() == [12, 13] and arrays["tokens"].shape == (2, TOKENS)
    assert {array.dtype.name for array in arrays.values()} == {"int32"} and (arrays["rounds"] > 0).all()


def test_the_bytes_do_not_depend_on_the_time_or_the_batch(whole, tmp_path, monkeypatch):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1e6)
    monkeypatch.setattr(call_plan, "PIECE_SECONDS", 0)
    make(tmp_path / "again", options={"batch": 1})
    assert contents(tmp_path / "again") == contents(whole)


def test_workers_make_the_same_files(whole, tmp_path):
    directory, count = tmp_path / "set", 4
    for number in range(count, 0, -1):
        before = contents(directory) if directory.exists() else {}
        make(directory, part=f"{number}/{count}")
        after = contents(directory)
        assert before.items() <= after.items()
        made = {name.split("/")[0] for name in after if name.startswith("shard") and name not in before}
        assert made == {
            path.name for shard in range(number - 1, 5, count) for path in shard_paths(directory, shard)
        }
        if number > 1:
            with refused(r"lacks \d of 5 shards \(number 0"):
                read_set(directory)
    assert contents(directory) == contents(whole)


def test_a_set_stopped_between_any_two_steps_can_be_completed(whole, tmp_path, monkeypatch):
    """Ctrl-C after every piece of work in turn, and before and after a shard's arrays are written."""
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


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b"IDAT") + 6] ^= 0xFF
    path.write_bytes(content)


def swap(path: Path) -> None:
    path.write_bytes(path.with_name(path.name.replace("1", "2")).read_bytes())


def test_a_damaged_shard_is_made_again_once_it_is_removed(whole, tmp_path):
    directory = shutil.copytree(whole, tmp_path / "set")
    arrays, picture = directory / "shard-00001.npz", directory / "shard-00001/00000004.png"
    for path, spoil in (
        (picture, cut),
        (picture, flip),
        (picture, Path.unlink),
        (arrays, cut),
        (arrays, swap),
    ):
        content = path.read_bytes()
        spoil(path)
        refused_with(lambda: read_set(directory), str(path))
        path.write_bytes(content)
    shutil.rmtree(directory / "shard-00001")
    refused_with(lambda: read_set(directory), "lacks 1 of 5 shards (number 1)")
    assert make(directory) == 3 and contents(directory) == contents(whole)


def test_a_picture_of_another_prompt_is_refused(whole, tmp_path):
    directory = tmp_path / "set"
    plan = a_plan(prompts=("night", *PROMPTS[1:]), shard_size=14)
    begin(directory, plan)
    pictures = [picture.picture for picture in read_set(whole)]
    tokens = np.zeros((14, TOKENS), np.int32)
    write_shard(directory, a_plan(shard_size=14), 0, pictures, tokens, tokens[:, 0])
    refused_with(lambda: read_set(directory), "says that it is number 0 of prompt 'a lake', not 0 of 'night'")


def test_a_stop_loses_only_unfinished_pictures(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(call_plan, "PIECE_SECONDS", 0)
    directory, plan, done = tmp_path / "set", a_plan(shard_size=14), []

    def stop(now):
        done.append(now.pictures)
        if now.pictures >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(directory, plan, progress=stop)
    (file,) = directory.glob(".*.kept")
    kept = np.load(file)["numbers"]
    assert len(kept) == done[-1] >= 6 and plan.missing(directory) == [0]
    # Now another worker's, beside a damaged file.
    file.rename(directory / ".worker-7-of-9.kept")
    (directory / ".worker-1-of-1.kept").write_bytes(b"PK")
    stream, asked = call_plan.Plan.stream, []

    def watched(self, job, numbers, rows):
        asked.extend(numbers.tolist())
        return stream(self, job, numbers, rows)

    monkeypatch.setattr(call_plan.Plan, "stream", watched)
    assert make(directory, plan) == 14
    assert sorted([*asked, *kept.tolist()]) == list(range(14)), "some were decoded again, or not at all"
    made = contents(directory)
    assert set(made) == {"set.json", "shard-00000.npz"} | {f"shard-00000/{n:08d}.png" for n in range(14)}
    theirs = {Path(name).name: content for name, content in contents(whole).items()}
    assert all(content == theirs[Path(name).name] for name, content in made.items() if name.endswith(".png"))


def test_the_example_of_the_page_runs(whole, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).resolve().parents[2] / "docs" / "sets.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("pictures").symlink_to(whole)
    exec(compile(example, "sets.md", "exec"), {})
    assert capsys.readouterr().out.count(f"({SIDE}, {SIDE}, 3)") == 14


def test_the_plan_has_the_tuned_settings_that_are_used(tiny_folder, tiny_loaded, monkeypatch):
    opened = open_set(str(tiny_folder), PROMPTS, {"batch": 4, "rule": None})
    assert (opened.options, opened.note) == ({"batch": 4, "rule": None}, "")
    found = Found({"method": "jacobi:nodes=3"}, "tuned: a window")
    monkeypatch.setattr(Pipeline, "tuning", lambda self, pictures, **options: found)
    opened = open_set(str(tiny_folder), PROMPTS, {"batch": 4})
    assert opened.options["method"] == "jacobi:nodes=3" and opened.note == "tuned: a window"
    assert opened.plan.settings == tiny_pipeline().settings({"method": "jacobi:nodes=3"}).to_json()
