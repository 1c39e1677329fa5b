"""Picture sets in process: what is made, by whom, in which bytes; reading back, merging, going on."""

import dataclasses
import io
import json
import re
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from lantern_jax.checkpoints.store import save
from lantern_jax.engine.programs import NotRefillable
from lantern_jax.metrics.features import FeatureReader
from lantern_jax.metrics.moments import Moments
from lantern_jax.pipeline import call
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.sets import plan as plans
from lantern_jax.sets import shards, worker
from lantern_jax.sets.plan import SetPlan, Worker, begin, read_plan, shard_paths
from lantern_jax.sets.reading import SUMS_FILE, is_set, merge, read_set
from lantern_jax.sets.request import OpenedSet, SetRequest, open_set
from lantern_jax.sets.shards import read_arrays, unpacked, write_shard
from lantern_jax.sets.worker import discard_damaged, make_set
from lantern_jax.settings.settings import settings_json
from lantern_jax.settings.tuned import Found
from lantern_jax.tensors.checksums import checkpoint_digest
from tests.tiny_checkpoint import PROMPTS, SIDE, TOKENS, pipeline_on, tiny_checkpoint, tiny_pipeline

KNOBS = {"batch": 4}
SHARD = 3

READER = FeatureReader(
    "toy mean, none/plain",
    3,
    lambda picture: picture.astype(np.float32) / 255,
    lambda pictures: pictures.mean(axis=(1, 2)),
    batch=4,
)


def a_plan(**parts) -> SetPlan:
    settings = settings_json(tiny_pipeline().settings(KNOBS))
    held = {
        "prompts": PROMPTS, "num": 2, "seed": 3, "model": "tiny", "dtype": "float32", "settings": settings,
        "format": "png", "shard_size": SHARD, "sums": READER.name,
    }  # fmt: skip
    return SetPlan(**held | parts)


def make(directory, plan=None, worker="1/1", pipeline=None, knobs=KNOBS, **options):
    plan = a_plan() if plan is None else plan
    begin(directory, plan)
    opened = OpenedSet(pipeline or tiny_pipeline(), plan, knobs, reader=READER if plan.sums else None)
    return make_set(opened, directory, Worker.parse(worker), **options)


def contents(directory) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def copied(whole, directory, **changed) -> Path:
    """A copy of a set, the named files with other contents."""
    directory.mkdir(exist_ok=True)
    for name, content in contents(whole).items():
        (directory / name).write_bytes(changed.get(name, content))
    return directory


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A set made at once."""
    directory = tmp_path_factory.mktemp("sets") / "whole"
    assert make(directory) == 14
    return directory


def test_the_pictures_are_those_of_generate(whole):
    made = tiny_pipeline().generate(list(PROMPTS), num=2, seed=3, **KNOBS)
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


def test_the_same_bytes_at_another_time_and_with_another_batch(whole, tmp_path, monkeypatch):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1e6)
    monkeypatch.setattr(call, "PIECE_SECONDS", 0)
    make(tmp_path / "again", knobs={"batch": 3})
    assert contents(tmp_path / "again") == contents(whole)


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_make_the_same_files(whole, tmp_path, workers):
    directory = tmp_path / "set"
    for number in range(workers, 0, -1):
        before = contents(directory) if directory.exists() else {}
        make(directory, worker=f"{number}/{workers}")
        after = contents(directory)
        assert before.items() <= after.items()
        made = {name for name in after if name.startswith("shard") and name not in before}
        assert made == {
            path.name for shard in range(number - 1, 5, workers) for path in shard_paths(directory, shard)
        }
        if number > 1:
            with pytest.raises(ValueError, match=r"lacks \d of 5 shards \(number 0"):
                merge(directory)
            with pytest.raises(ValueError, match="lacks"):
                next(read_set(directory))
    assert contents(directory) == contents(whole)


def test_devices_make_the_same_tokens_in_refilled_slots(whole, tmp_path):
    directory, pipeline = tmp_path / "set", pipeline_on(2)
    make(directory, pipeline=pipeline)
    kinds = [key.kind for key in pipeline.engine.programs]
    assert kinds.count("start") == 1 and "refill" in kinds
    ours, theirs = list(read_set(directory)), list(read_set(whole))
    for one, another in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one.tokens, another.tokens)
        assert np.abs(one.picture.astype(int) - another.picture).max() <= 1


def test_stopped_between_any_two_steps_it_goes_on(whole, tmp_path, monkeypatch):
    """Ctrl-C after every piece of work in turn, and while either file of a shard is written."""
    monkeypatch.setattr(call, "PIECE_SECONDS", 0)
    directory, stops = tmp_path / "set", 0

    class Stop(BaseException):
        pass

    def stop_at(step: int):
        seen = 0

        def progress(now):
            nonlocal seen
            seen += 1
            if seen > step:
                raise Stop

        return progress

    write = shards.write_file

    def write_and_stop(path, content):
        if stops % 3 == 0:
            # As a process that is killed leaves it.
            path.with_name(f".{path.name}.0123abcd.part").write_bytes(b"half")
            raise Stop
        write(path, content)
        if stops % 3 == 1:
            raise Stop

    monkeypatch.setattr(shards, "write_file", write_and_stop)
    while True:
        try:
            make(directory, progress=stop_at(4 + stops))
            break
        except Stop:
            stops += 1
        assert stops < 60
    assert stops > 3
    assert contents(directory) == contents(whole)
    assert make(directory) == 0


def test_webp_keeps_pixels_and_prompts(whole, tmp_path):
    prompts = ("ein Wald, 森 \"&' <b>\\n", "\t\u2028", "a lake")
    plan, directory = a_plan(format="webp", prompts=prompts, num=1, sums=None), tmp_path / "set"
    pictures = [picture.picture for picture in read_set(whole)][:SHARD]
    tokens = np.zeros((SHARD, TOKENS), np.int32)
    begin(directory, plan)
    write_shard(directory, plan, 0, pictures, tokens, tokens[:, 0])
    assert merge(directory).pictures == SHARD
    for picture, original, prompt in zip(read_set(directory), pictures, prompts, strict=True):
        np.testing.assert_array_equal(picture.picture, original)
        assert picture.prompt == prompt


def test_sums_of_shards_are_those_of_the_set(whole, tmp_path):
    expected = Moments.of(READER.features(picture.picture for picture in read_set(whole)))
    merged = merge(whole)
    found = np.load(whole / SUMS_FILE)
    (whole / SUMS_FILE).unlink()
    for sums in (merged.sums, unpacked(found)[READER.name]):
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


CHANGES = {
    "seed 3, not 4": {"seed": 4},
    "num 2, not 3": {"num": 3},
    "prompt 7 'fog', not 'mist'": {"prompts": (*PROMPTS[:-1], "mist")},
    "7 prompts, not 6": {"prompts": PROMPTS[:-1]},
    'model "tiny", not "other"': {"model": "other"},
    'dtype "float32", not "bfloat16"': {"dtype": "bfloat16"},
    'format "png", not "webp"': {"format": "webp"},
    "shard size 3, not 4": {"shard_size": 4},
    "sums .*, not null": {"sums": None},
}


@pytest.mark.parametrize("line", CHANGES)
def test_another_set_is_refused(whole, line):
    before = contents(whole)
    with pytest.raises(ValueError, match=rf"holds another set \({line}\): name another folder") as error:
        begin(whole, a_plan(**CHANGES[line]))
    assert "\n" not in str(error.value)
    assert contents(whole) == before


def test_other_settings_are_refused(whole):
    for knobs, line in (({"temperature": 0.5}, "temperature 1.0, not 0.5"), ({"tree": "chain"}, "tree {")):
        settings = settings_json(tiny_pipeline().settings(knobs))
        with pytest.raises(ValueError, match=line):
            begin(whole, a_plan(settings=settings))
    assert a_plan(settings=settings_json(tiny_pipeline().settings({"batch": 2}))) == a_plan()
    assert read_plan(whole) == a_plan()


def test_folders_that_are_no_sets(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.png").write_text("x")
    for name in ("file", "full"):
        with pytest.raises(ValueError, match="is not a picture set: name a new folder"):
            begin(tmp_path / name, a_plan())
    with pytest.raises(ValueError, match="is not a folder: make it first"):
        begin(tmp_path / "none" / "set", a_plan())
    with pytest.raises(ValueError, match=r"there is no set\.json"):
        merge(tmp_path / "full")
    (tmp_path / "full" / "set.json").write_text('{"written_by": "somebody"}')
    with pytest.raises(ValueError, match="damaged or of another version"):
        read_plan(tmp_path / "full")


def test_a_plan_that_another_worker_wrote_meanwhile_stays(tmp_path, monkeypatch):
    directory = tmp_path / "set"
    check = plans.check_plan

    def slow_check(place, plan):
        check(place, plan)
        if not is_set(place):
            monkeypatch.setattr(plans, "check_plan", check)
            begin(place, a_plan(seed=9))

    monkeypatch.setattr(plans, "check_plan", slow_check)
    with pytest.raises(ValueError, match="seed 9, not 3"):
        begin(directory, a_plan())
    assert read_plan(directory).seed == 9
    assert set(contents(directory)) == {"set.json"}


def test_damage_is_named(whole, tmp_path):
    pictures, arrays, directory = "shard-00001.tar", "shard-00001.npz", tmp_path / "copy"
    short = io.BytesIO()
    of_shard = read_arrays(whole, a_plan(), 1)
    np.savez(short, **of_shard | {"rounds": of_shard["rounds"][:-1]})
    for name, content in (
        (pictures, (whole / pictures).read_bytes()[:900]),
        (pictures, (whole / "shard-00002.tar").read_bytes()),
        (arrays, (whole / arrays).read_bytes()[:100]),
        (arrays, (whole / "shard-00002.npz").read_bytes()),
        (arrays, short.getvalue()),
    ):
        copied(whole, directory, **{name: content})
        for read in (merge, lambda directory: list(read_set(directory))):
            with pytest.raises(ValueError, match=rf"{name} is damaged: remove it"):
                read(directory)
    copied(whole, directory)
    (directory / arrays).unlink()
    with pytest.raises(ValueError, match=r"lacks 1 of 5 shards \(number 1\)"):
        merge(directory)
    # Mended by the set's own command.
    make(directory)
    assert contents(directory) == contents(whole)


@pytest.mark.parametrize("wrong", [
    {"num": 10**18}, {"num": 0}, {"num": 2.0}, {"num": True}, {"num": None}, {"num": 2**31}, {"num": [2]},
    {"shard_size": 0}, {"shard_size": -1}, {"shard_size": "3"}, {"shard_size": 1, "num": 10**6},
    {"shard_size": 2**31 - 1, "num": 10**7}, {"prompts": {}}, {"prompts": []}, {"prompts": "ab"}, {"prompts": [3]},
    {"prompts": {"a lake": 1}}, {"prompts": None}, {"seed": -1}, {"seed": 2**32}, {"seed": 0.5}, {"seed": "3"},
    {"model": None}, {"dtype": 32}, {"settings": []}, {"settings": None}, {"format": "gif"}, {"format": ["png"]},
    {"sums": 3}, {"sums": ["a"]}, {"more": 1},
], ids=str)  # fmt: skip
def test_every_field_of_a_plan_is_checked(whole, tmp_path, wrong):
    """It may be a stranger's; a picture more than there can be is looked for without end."""
    plan = json.loads((whole / "set.json").read_text())
    (tmp_path / "set.json").write_text(json.dumps(plan))
    assert read_plan(tmp_path) == a_plan()
    (tmp_path / "set.json").write_text(json.dumps(plan | wrong))
    for read in (read_plan, merge, read_set):
        with pytest.raises(ValueError, match=r"set\.json is damaged or of another version") as error:
            read(tmp_path)
        assert "\n" not in str(error.value) and len(str(error.value)) < 600


def test_as_large_a_set_as_can_be_is_looked_through_quickly(tmp_path):
    largest = a_plan(prompts=("a lake",), num=plans.MOST_SHARDS, shard_size=1)
    began = time.monotonic()
    assert len(largest.missing(tmp_path)) == largest.shards == plans.MOST_SHARDS
    assert time.monotonic() - began < 20
    with pytest.raises(ValueError, match="shard size 1 is not valid for 100001 pictures: give 2 to"):
        a_plan(prompts=("a lake",), num=plans.MOST_SHARDS + 1, shard_size=1)
    # A set has more pictures than one call.
    encoded = tiny_pipeline().encode("a lake")
    assert tiny_pipeline().prepare(encoded, num=50_000)[0].num == 50_000


def test_sums_are_finite_numbers_of_the_shards_pictures(whole, tmp_path):
    name = f"moments/{READER.name}"
    for number, (part, wrong) in enumerate({
        "total": np.full(3, np.nan), "outer": np.full((3, 3), np.inf), "count": np.int64(99),
    }.items()):  # fmt: skip
        for spoiled, value in ((part, wrong), ("total", np.array(["a"] * 3)), ("outer", np.zeros((3, 2)))):
            directory = copied(whole, tmp_path / f"{number}-{spoiled}")
            arrays = read_arrays(whole, a_plan(), 1)
            np.savez(directory / "shard-00001.npz", **arrays | {f"{name}/{spoiled}": value})
            with pytest.raises(ValueError, match=r"shard-00001\.npz is damaged"):
                merge(directory)
    # Of other features than the shards before.
    other = {f"{name}/total": np.zeros(2), f"{name}/outer": np.zeros((2, 2))}
    np.savez(directory / "shard-00001.npz", **arrays | other)
    with pytest.raises(ValueError, match=r"shard-00001\.npz is damaged"):
        merge(directory)


@pytest.mark.parametrize(("name", "damage"), [
    # Cut in the last picture, in the first, before and after the first line of it; what follows pictures is padding.
    *(("shard-00001.tar", lambda content, most=most: content[:most]) for most in (2500, 900, 512, 100, 0)),
    ("shard-00003.npz", lambda content: content[:500]), ("shard-00004.tar", lambda content: bytes(len(content))),
])  # fmt: skip
def test_a_damaged_shard_is_found_and_made_again(whole, tmp_path, name, damage):
    told, changed = [], {name: damage((whole / name).read_bytes())}
    directory = copied(whole, tmp_path / "set", **changed)
    begin(directory, a_plan())
    # Another worker's is left alone.
    discard_damaged(directory, a_plan(), [0, 2], told.append)
    assert not told
    discard_damaged(directory, a_plan(), range(5), told.append)
    assert told == [f"shard {int(name[6:11])} of {directory} is damaged: it is made again"]
    assert make(directory) == len(a_plan().numbers(int(name[6:11])))
    assert contents(directory) == contents(whole)
    discard_damaged(directory, a_plan(), range(5), told.append)
    assert len(told) == 1


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


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "a/b", "-1/2", "1/2/3", "1 /2", "²/3"])
def test_workers_that_are_none(text):
    with pytest.raises(ValueError, match="is not valid: give i/N"):
        Worker.parse(text)


def test_every_shard_has_one_worker():
    plan = a_plan(num=5)
    for count in (1, 2, 3, 7, 20):
        parts = [shard for number in range(1, count + 1) for shard in Worker(number, count).shards(plan)]
        assert sorted(parts) == list(range(plan.shards))
    numbers = np.concatenate([plan.numbers(shard) for shard in range(plan.shards)])
    assert numbers.tolist() == list(range(plan.count))


def test_digests_tell_checkpoints_apart(tmp_path):
    first = save(tmp_path / "first", tiny_checkpoint())
    digest = checkpoint_digest(first)
    first.rename(tmp_path / "moved")
    assert checkpoint_digest(tmp_path / "moved") == digest
    assert checkpoint_digest(save(tmp_path / "second", tiny_checkpoint())) == digest
    changed = jax.tree.map(np.copy, tiny_checkpoint().target_params)
    changed["params"]["head"]["kernel"][0, 0] += 1
    other = dataclasses.replace(tiny_checkpoint(), target_params=changed)
    assert checkpoint_digest(save(tmp_path / "other", other)) != digest


def test_the_plan_has_the_tuned_settings_that_are_used(saved, tiny_loaded, monkeypatch):
    request = SetRequest(str(saved), PROMPTS, {"batch": 4, "tau": None})
    opened = open_set(request)
    assert (opened.knobs, opened.notes, opened.reader) == (KNOBS, (), None)
    found = Found({"tree": "chain"}, "tuned: a chain")
    monkeypatch.setattr(Pipeline, "tuning", lambda self, pictures, **knobs: found)
    opened = open_set(request)
    assert (opened.knobs, opened.notes) == ({"tree": "chain", "batch": 4}, ("tuned: a chain",))
    assert opened.plan.settings == settings_json(tiny_pipeline().settings({"tree": "chain"}))


def test_two_writers_of_one_shard_do_no_harm(tmp_path):
    """Two threads write a shard over and over; a reader finds it whole whenever it looks."""
    plan, directory = a_plan(prompts=PROMPTS[:1], num=3, sums=None), tmp_path / "set"
    begin(directory, plan)
    pictures = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE, 3), np.uint8)
    tokens = np.zeros((3, TOKENS), np.int32)

    def write(times: int) -> None:
        for _ in range(times):
            write_shard(directory, plan, 0, pictures, tokens, tokens[:, 0])

    write(1)
    first = contents(directory)
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(write, 25) for _ in range(2)]
        while not all(one.done() for one in running):
            assert len(list(read_set(directory))) == 3
    for one in running:
        one.result()
    assert contents(directory) == first


def test_the_next_shard_is_decoded_while_one_is_written(tmp_path, monkeypatch):
    """The first shard is held back until the second one is drawn; what fails in the thread ends the call."""
    monkeypatch.setattr(call, "PIECE_SECONDS", 0)
    draw, write, draws, told = worker._drawn, shards.write_file, threading.Semaphore(0), []

    def drawn(engine, tokens):
        draws.release()
        return draw(engine, tokens)

    def hold(path, content):
        if path.suffix == ".npz":
            assert draws.acquire(timeout=60) and (told or draws.acquire(timeout=60)), (
                "nothing was drawn meanwhile"
            )
        elif told:
            raise OSError("the disk is full")
        write(path, content)

    monkeypatch.setattr(worker, "_drawn", drawn)
    monkeypatch.setattr(shards, "write_file", hold)
    with pytest.raises(OSError, match="the disk is full"):
        make(tmp_path / "set", written=lambda shard, now: told.append(shard))
    assert len(told) == 1 and len(list((tmp_path / "set").glob("*.tar"))) == 1
