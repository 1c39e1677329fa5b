"""Ctrl-C: finished pictures are kept, each once, wherever the interrupt arrives; the command writes them."""

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lantern_jax.pipeline.pipeline
from lantern_jax.apps.commands.main import main
from lantern_jax.engine import engine
from lantern_jax.engine.generation import Interrupted
from lantern_jax.pipeline import plan as call_plan
from tests.command import files
from tests.tiny_checkpoint import SIDE, tiny_pipeline

PROMPT = "a lake"


def stop_after(pictures: int):
    """Returns a progress callback that interrupts once this many pictures are done."""

    def progress(now):
        if now.pictures >= pictures:
            raise KeyboardInterrupt

    return progress


def interrupted(**options):
    with pytest.raises(Interrupted) as stop:
        tiny_pipeline().generate(PROMPT, seed=3, **options)
    return stop.value.generation


@pytest.mark.parametrize("count", [0, 2])
def test_an_interruption_reaches_another_process_with_its_pictures(count):
    generation = tiny_pipeline().generate(PROMPT, num=count, seed=3) if count else None
    sent = pickle.loads(pickle.dumps(Interrupted(generation)))
    assert sent.generation is None if generation is None else str(sent.generation) == str(generation)


@pytest.fixture(scope="module")
def whole():
    return tiny_pipeline().generate(PROMPT, num=5, seed=3, first=4, batch=2)


def assert_part_of(part, whole):
    """Asserts that a part has pictures of ``whole``, each at most once."""
    rows = [whole.numbers.tolist().index(number) for number in part.numbers]
    assert len(set(rows)) == len(rows) == part.statistics.pictures
    np.testing.assert_array_equal(part.tokens, whole.tokens[rows])
    np.testing.assert_array_equal(part.round_of_token, whole.round_of_token[rows])
    assert np.abs(part.pictures.astype(int) - whole.pictures[rows]).max() <= 1
    assert part.prompts == tuple(whole.prompts[row] for row in rows)


@pytest.mark.parametrize("compare", [False, True])
def test_finished_pictures_are_kept(whole, monkeypatch, compare):
    """Of a comparison the speculative ones, stopped after some or all of them, or after some of the plain ones."""
    monkeypatch.setattr(call_plan, "PIECE_SECONDS", 0)
    for pictures in (3, 5, 7) if compare else range(1, 6):
        part = interrupted(num=5, first=4, batch=2, compare=compare, progress=stop_after(pictures))
        assert_part_of(part, whole)
        assert min(pictures, 5) <= len(part.numbers) <= 5
        assert part.statistics.tokens_per_second > 0
        assert part.plain is None and part.statistics.speedup is None


class Tracer:
    """Records the lines run in the modules that do a call's work; raises KeyboardInterrupt at the n-th."""

    modules = (call_plan.__file__, engine.__file__)

    def __init__(self, line: int = 0):
        self.line, self.places = line, []

    def __call__(self, frame, event, _):
        if frame.f_code.co_filename not in self.modules:
            return None
        if event == "line":
            self.places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            if len(self.places) == self.line:
                raise KeyboardInterrupt
        return self


def traced(tracer: Tracer, **options):
    """Returns the pictures that a call leaves, None if there are none, and how many its progress reported."""
    told, before = [], sys.gettrace()
    sys.settrace(tracer)
    try:
        made = tiny_pipeline().generate(PROMPT, **options, progress=told.append)
    except KeyboardInterrupt as stop:
        made = getattr(stop, "generation", None)
    finally:
        sys.settrace(before)
    return made, told[-1].pictures if told else 0


def test_wherever_an_interrupt_arrives_no_picture_is_lost_or_doubled(whole, monkeypatch):
    """At every third line of a call's work, when it last runs."""
    monkeypatch.setattr(call_plan, "PIECE_SECONDS", 1e9)
    options = {"num": 2, "seed": 3, "first": 4, "batch": 1}
    tiny_pipeline().generate(PROMPT, **options)
    traced(seen := Tracer(), **options)
    lines = {place: number for number, place in enumerate(seen.places, 1)}
    assert len(lines) > 50, "the tracer saw little"
    kept = set()
    for line in sorted(lines.values())[::3]:
        part, done = traced(tracer := Tracer(line), **options)
        count = 0 if part is None else len(part.numbers)
        kept.add(count)
        assert count >= done, tracer.places[-1]
        if part is not None:
            assert_part_of(part, whole)
    assert kept == {0, 1, 2}
    again = tiny_pipeline().generate(PROMPT, **options)
    np.testing.assert_array_equal(again.tokens, whole.tokens[:2])


@pytest.fixture
def folder(tmp_path, tiny_demo, monkeypatch):
    """An empty current folder, and a tiny checkpoint in place of the demo."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lantern_jax.devices.compilation, "keep_compiled_programs", lambda: None)
    monkeypatch.setattr(call_plan, "PIECE_SECONDS", 0)
    return tmp_path


@pytest.fixture
def ctrl_c(monkeypatch):
    """A function; once called, Ctrl-C arrives as soon as this many pictures are done."""

    run = call_plan.Plan.run

    def after(pictures: int) -> None:
        def stopped(plan, progress=None, compare=False):
            return run(plan, stop_after(pictures), compare)

        monkeypatch.setattr(call_plan.Plan, "run", stopped)

    return after


def picture(path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def test_the_command_writes_files_under_their_own_numbers(folder, ctrl_c, capsys):
    numbers = "--num 5 --seed 3 --first 4 --batch 2 --out many/"
    arguments = ["generate", PROMPT, *numbers.split()]
    assert main([*arguments, "--out", "all/"]) == 0
    capsys.readouterr()
    ctrl_c(3)
    assert main([*arguments, "--stats", "a.json"]) == 130
    printed = capsys.readouterr()
    written = {path.name for path in Path("many").iterdir()}
    assert written < {f"{number:02d}-a-lake.png" for number in range(4, 9)}
    assert 3 <= len(written) < 5 and {"04-a-lake.png", "05-a-lake.png"} <= written
    for name in written:
        np.testing.assert_array_equal(picture(f"many/{name}"), picture(f"all/{name}"))
    assert printed.err == f"lantern: interrupted, wrote {len(written)} of 5 pictures to many\n"
    assert printed.out == ""
    assert not Path("a.json").exists()


def test_the_command_writes_one_file_of_finished_pictures(folder, ctrl_c, capsys):
    """A grid; for a comparison the speculative picture; no file if nothing is finished."""
    assert main(["generate", PROMPT, "--out", "alone.png"]) == 0
    for number, (pictures, options, said) in enumerate((
        (0, "--num 3", "interrupted\n"),
        (1, "--compare", "wrote 1 of 1 pictures"),
        (2, "--num 5 --batch 2 --show-acceptance", "wrote 2 of 5 pictures"),
    )):  # fmt: skip
        ctrl_c(pictures)
        assert main(["generate", PROMPT, "--out", f"{number}.png", *options.split()]) == 130
        assert said in capsys.readouterr().err
    assert files(folder) == {"alone.png", "1.png", "2.png", "2-accepted.png"}
    np.testing.assert_array_equal(picture("1.png"), picture("alone.png"))
    height, width = picture("2.png").shape[:2]
    assert width > 2 * SIDE and width > 1.5 * height, "two pictures beside each other"


def test_ctrl_c_while_files_are_written_keeps_all_pictures(folder, capsys, monkeypatch):
    replace, times = os.replace, []

    def stop_at_the_second(*names):
        times.append(names)
        if len(times) == 2:
            raise KeyboardInterrupt
        replace(*names)

    monkeypatch.setattr("lantern_jax.io.files.os.replace", stop_at_the_second)
    assert main(["generate", PROMPT, "--num", "3", "--out", "many/"]) == 130
    assert files(folder) == {"many", *(f"many/{number:02d}-a-lake.png" for number in range(3))}
    assert capsys.readouterr().err == "lantern: interrupted, wrote 3 of 3 pictures to many\n"


@pytest.fixture
def interruptible():
    """Started programs receive SIGINT, even if the tests run where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def read(terminal: int) -> bytes:
    """Reads what is there; nothing once the other end is closed."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.usefixtures("interruptible")
def test_sigint_to_a_process_on_a_terminal(tmp_path, tiny_folder):
    """More pictures than could ever be made; SIGINT as soon as the bar shows that one is done."""
    folder, count = tmp_path / "work", 10_000
    folder.mkdir()
    terminal, end = os.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "150", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    options = f"--model {tiny_folder} --num {count} --batch 1 --out all/"
    command = ["generate", PROMPT, *options.split()]
    process = subprocess.Popen(
        [sys.executable, "-m", "lantern_jax", *command], cwd=folder, stdin=subprocess.DEVNULL, stderr=end,
        stdout=subprocess.PIPE, env=environment | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )  # fmt: skip
    os.close(end)
    shown, sent = b"", False
    guard = threading.Timer(300, process.kill)
    guard.start()
    try:
        while new := read(terminal):
            shown += new
            if not sent and re.search(rb"\b[1-9]\d*/10000 pictures", shown):
                process.send_signal(signal.SIGINT)
                sent = True
        printed = process.communicate(timeout=120)[0]
    finally:
        guard.cancel()
        process.kill()
        os.close(terminal)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert (process.returncode, printed) == (130, b""), text[-2000:]
    assert re.search(r"\d+/160000 tokens, \d+ tokens/s, .*\d+:\d\d:\d\d left", text)
    wrote = re.search(r"lantern: interrupted, wrote (\d+) of 10000 pictures to all$", text.strip())
    assert wrote and 0 < int(wrote[1]) < count
    assert len(list((folder / "all").glob("[0-9]*.png"))) == int(wrote[1])
