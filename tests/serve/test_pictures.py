"""Pictures from the endpoint: the tokens of the library and the command, no matter what else is served."""

import base64
import io
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import numpy as np
import pytest
from PIL import Image

import lantern_jax.pipeline.pipeline
from lantern_jax.apps.commands.main import main
from lantern_jax.apps.display.picture_files import tokens_digest
from lantern_jax.apps.serve.batch import GREY, guessed
from lantern_jax.engine.programs import NotRefillable
from lantern_jax.settings.tuned import Found
from tests.cases import slow
from tests.serve.running import BATCH, HEAD, PATH, QUEUE, Gate, events, in_threads, running, until
from tests.tiny_checkpoint import GRID, SIDE, TOKENS, pipeline_on

PLAIN = {"method": "ar"}


def picture_of(data: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(data)))


def codes_of(response) -> np.ndarray:
    assert response.status_code == 200, response.text
    return np.array([entry["lantern"]["codes"] for entry in response.json()["data"]])


def test_endpoint_library_and_command_make_the_same_pictures(server, monkeypatch, tmp_path, capsys):
    asked = {"method": "lantern-g:lam=3", "temperature": 0.8}
    answer = server.ask(n=3, seed=11, details=True, size=f"{SIDE}x{SIDE}", **asked).json()
    library = server.library()
    made = library.generate("a lake", num=3, seed=11, **asked)
    assert answer["usage"]["output_tokens"] == 3 * TOKENS and answer["output_format"] == "png"
    assert len({tuple(tokens) for tokens in made.tokens}) == 3
    for number, entry in enumerate(answer["data"]):
        figures, image = entry["lantern"], picture_of(entry["b64_json"])
        assert figures["codes"] == made.tokens[number].tolist()
        assert figures["round_of_token"] == made.round_of_token[number].tolist()
        assert np.abs(np.asarray(image).astype(int) - made.pictures[number]).max() <= 1
        assert image.text["prompt"] == "a lake" and image.text["seed"] == "11"
        assert image.text["number"] == str(number) and image.text["tokens"] == figures["digest"]
        assert json.loads(image.text["settings"]) == answer["lantern"]["settings"]

    monkeypatch.setattr(lantern_jax.pipeline.pipeline, "load", lambda *arguments, **options: library)
    options = [text for name, value in asked.items() for text in (f"--{name}", str(value))]
    arguments = ["generate", "a lake", "--num", "3", "--seed", "11", "--out", f"{tmp_path}/", *options]
    assert main(arguments) == 0, capsys.readouterr().err
    for number, file in enumerate(sorted(tmp_path.glob("0*.png"))):
        text, image = Image.open(file).text, picture_of(answer["data"][number]["b64_json"])
        assert dict(text) == dict(image.text)
        assert text["tokens"] == tokens_digest(made.tokens[number])


@pytest.mark.parametrize("compiled", [slow(False), True])
def test_later_requests_share_a_run(server, gate, monkeypatch, compiled):
    """Each has its own seed, and tokens as if it were alone: a run of one picture takes in the others if the program of
    a larger run is compiled; otherwise they share the next."""
    started, plain = [], server.engine.start
    monkeypatch.setattr(server.engine, "has_program", lambda run, count: compiled)

    def start(job, conditioning, **options):
        started.append(options["seed"].tolist())
        return plain(job, conditioning, **options)

    monkeypatch.setattr(server.engine, "start", start)
    # The last seed, which starts first, takes the fewest rounds: round by round, its slot is seen to be free before the
    # others are done (longer pieces may end all of them together).
    seeds = [*range(BATCH), 12]
    asks = [partial(server.ask, seed=seed, details=True) for seed in seeds]
    clients = [lambda ask=ask: codes_of(ask())[0] for ask in asks]
    others = [server.later(client, decoding=1) for client in clients[:BATCH]]
    let = server.later(lambda: gate.let(1000), decoding=1, queue_length=BATCH)
    made = in_threads([*others, clients[BATCH], let])
    library = server.library()
    for tokens, seed in zip(made, seeds, strict=False):
        assert np.array_equal(tokens, library.generate("a lake", seed=seed).tokens[0])
    shared = [[12]] if compiled else [[12], seeds[:BATCH]]
    assert [sorted(seeds) for seeds in started] == shared


@pytest.mark.parametrize("memory", [True, False])
def test_slots_are_released(server, gate, monkeypatch, memory):
    """Once pictures are done and none are waiting; without memory for two runs the larger one continues."""
    monkeypatch.setattr(server.engine, "has_program", lambda run, count: True)
    sizes, plain = [], server.engine.regroup

    def regroup(run, slots):
        sizes.append(len(slots))
        if not memory:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return plain(run, slots)

    monkeypatch.setattr(server.engine, "regroup", regroup)
    gate.let(1000)
    made = codes_of(server.ask(n=BATCH, seed=6, method="gumbel", details=True))
    assert np.array_equal(made, server.library().generate("a lake", num=BATCH, seed=6).tokens)
    assert sizes and sizes == sorted(set(sizes), reverse=True) and (memory or len(sizes) == 1)


@pytest.mark.parametrize("refillable", [True, False])
def test_slots_are_refilled(server, gate, monkeypatch, refillable):
    """More pictures than slots, one round at a time; a run that cannot be refilled is finished first."""
    expected = server.library().generate("a lake", num=7, seed=5, batch=BATCH).tokens
    refills, plain = [], server.engine.refill

    def refill(run, slots, *arguments, **options):
        if not refillable:
            raise NotRefillable("no axis of sequences")
        refills.append(len(slots))
        return plain(run, slots, *arguments, **options)

    monkeypatch.setattr(server.engine, "refill", refill)
    gate.let(1000)
    made = codes_of(server.ask(n=7, seed=5, details=True))
    assert np.array_equal(made, expected)
    assert sum(refills) == 3 * refillable, "the last ones had to wait for a whole run"


def test_every_batch_guesses_in_the_best_way_for_its_size(server, monkeypatch):
    """Here four are decoded plainly and two with guesses; requests share batches, and tokens stay the same."""
    started, plain = [], server.engine.start
    ways = {1: {}, 2: {}, BATCH: PLAIN}

    def start(job, conditioning, **options):
        started.append((options["most"], job.program.drafting.max_depth > 0))
        return plain(job, conditioning, **options)

    def tuning(pictures, **options):
        return Found(ways[min(pictures, options["batch"])])

    monkeypatch.setattr(server.engine, "start", start)
    monkeypatch.setattr(server.engine, "has_program", lambda run, count: False)
    monkeypatch.setattr(server.pipeline, "tuning", tuning)
    library = server.library()
    for count, runs in ((BATCH, [(BATCH, False)]), (2, [(2, True)])):
        answer = server.ask(n=count, seed=9, details=True)
        expected = library.generate("a lake", num=count, seed=9, batch=BATCH)
        assert np.array_equal(codes_of(answer), expected.tokens)
        settings = library.settings(PLAIN if count == BATCH else {})
        assert answer.json()["lantern"]["settings"] == settings.to_json()
        assert started == runs
        started.clear()


def test_other_settings_do_not_starve(server, gate):
    """Pictures with the running settings that arrive after one with other settings start after it."""
    done = []

    def client(name: str, count: int, ahead: int, temperature: float):
        asked = {"n": count, "temperature": temperature}
        return server.later(
            lambda: server.ask(**asked).raise_for_status() and done.append(name),
            decoding=BATCH * (name != "many"), queue_length=ahead,
        )  # fmt: skip

    in_threads([
        client("many", BATCH, 0, 0.7), client("first", 2, 0, 0.7), client("other", 1, 2, 0.9),
        client("last", QUEUE - 3, 3, 0.7), server.later(gate.open, decoding=BATCH, queue_length=QUEUE),
    ])  # fmt: skip
    assert done.index("other") < done.index("last") and len(done) == 4


def test_a_stream_shows_the_unfinished_picture(server, gate):
    gate.let(1000)
    *partial, end = server.told(seed=3, partial_images=2, **PLAIN)
    assert [event["type"] for event in partial] == ["image_generation.partial_image"] * 2
    assert [event["partial_image_index"] for event in partial] == [0, 1]
    tokens = server.library().generate("a lake", seed=3, **PLAIN).tokens[0]
    assert end["type"] == "image_generation.completed" and end["usage"]["total_tokens"] == TOKENS
    assert end["lantern"]["digest"] == tokens_digest(tokens)
    cell = SIDE // GRID
    for event in partial:
        known, picture = event["lantern"]["tokens"], np.asarray(picture_of(event["b64_json"]))
        assert picture.shape == (SIDE, SIDE, 3)
        cells = picture.reshape(GRID, cell, GRID, cell, 3).transpose(0, 2, 1, 3, 4).reshape(TOKENS, -1)
        assert (cells[known:] == GREY).all() and not (cells[:known] == GREY).all(axis=1).any()
        assert 0 < known < TOKENS


def test_details_tell_how_far_a_picture_is(server, gate):
    gate.let(1000)
    queued, *progress, end = server.told(seed=4, details=True)
    assert queued["type"] == "lantern.queued" and queued["ahead"] == 0
    assert queued["lantern"]["settings"]["drafting"].startswith("led:")
    assert {event["type"] for event in progress} == {"lantern.progress"}
    known = [event["lantern"]["tokens"] for event in progress]
    assert known == sorted(known) and any("b64_json" in event for event in progress)
    for event in progress:
        if "b64_json" in event:
            opacity = np.asarray(picture_of(event["b64_json"]))[..., 3]
            # It may be slightly older: a late reader gets the last picture with the newest figures.
            assert 0 < (opacity == 255).mean() <= event["lantern"]["tokens"] / TOKENS
            assert set(opacity.flat) <= {0, 255}
    made, told = server.library().generate("a lake", seed=4), end["lantern"]
    assert told["codes"] == made.tokens[0].tolist() and told["rounds"] == made.statistics.rounds
    assert told["round_of_token"] == made.round_of_token[0].tolist()


def test_a_picture_is_continued_from_its_first_rows(server):
    made = server.library().generate("a lake", seed=4, **PLAIN)
    begun = {"start": made.tokens[0].tolist(), "keep_rows": 3, **PLAIN}
    expected = server.library().generate("a sea", seed=9, start=made.tokens, keep_rows=3, **PLAIN)
    several = server.ask(prompt="a sea", seed=9, n=2, details=True, **begun)
    assert (codes_of(several)[0] == expected.tokens[0]).all()
    *_, end = server.told(prompt="a sea", seed=9, details=True, **begun)
    assert end["lantern"]["codes"] == expected.tokens[0].tolist()
    assert end["lantern"]["tokens_a_round"] == round((TOKENS - 3 * GRID) / end["lantern"]["rounds"], 4)
    # With its own seed and prompt it is the same picture again.
    assert (codes_of(server.ask(seed=4, details=True, **begun)) == made.tokens).all()


def test_a_start_that_cannot_be_continued_is_refused(server):
    for begun, param, words in (
        ({"keep_rows": 2}, "keep_rows", "give it as start"), ({"start": [0] * 3}, "start", "16 per picture"),
        ({"start": [0] * TOKENS, "keep_rows": GRID}, "keep_rows", "1 to 3"),
        ({"start": "picture.png"}, "start", "give a picture's codes"),
        ({"start": [0] * TOKENS, "method": "zipar"}, "method", "choose another method"),
    ):  # fmt: skip
        response = server.ask(**begun)
        error = response.json()["error"]
        assert response.status_code == (422 if param == "method" else 400)
        assert error["param"] == param and words in error["message"]


def test_a_waiting_client_is_told_how_many_are_ahead(server, gate):
    def told() -> list[dict]:
        return server.told(seed=2, details=True, **PLAIN)

    with ThreadPoolExecutor(3) as clients:
        first = clients.submit(lambda: server.ask(n=BATCH))
        server.wait_for(decoding=BATCH)
        second = clients.submit(lambda: server.ask(n=2, temperature=0.5, **PLAIN))
        server.wait_for(queue_length=2)
        third = clients.submit(told)
        server.wait_for(queue_length=3)
        gate.open()
        assert first.result().status_code == second.result().status_code == 200
    queued, *later = third.result()
    assert (queued["type"], queued["ahead"]) == ("lantern.queued", 2)
    assert [event["ahead"] for event in later if event["type"] == "lantern.queued"] == [0]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(server, gate, stream):
    before = server.metrics()
    body = json.dumps({"prompt": "a lake", "n": 6, "stream": stream, "details": True})
    with socket.create_connection(server.address) as connection:
        connection.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        server.wait_for(decoding=BATCH, queue_length=2)
    freed = {"lantern_decoding": 0, "lantern_queue_length": 0}
    # The first round after the client is known to have left finds no client, before the pictures' last one.
    while not freed.items() <= server.metrics().items():
        gate.let(1)
        time.sleep(0.6)
    after, left = server.metrics(), 'lantern_requests_total{status="0"}'
    assert after[left] == before.get(left, 0) + 1
    assert after["lantern_pictures_dropped_total"] == before["lantern_pictures_dropped_total"] + 6
    assert after["lantern_pictures_total"] == before["lantern_pictures_total"]
    gate.open()
    assert server.ask().status_code == 200


def test_warm_means_nothing_is_left_to_compile(server, caplog):
    caplog.set_level("INFO", "lantern_jax")
    with running(server.library(), warm_up=True, batch=2) as warm:
        warm.wait_for(warm=1)
        assert warm.client.get("/health").json() == {"status": "ok", "warm": True}
        assert sum("ready" in record.message for record in caplog.records) == 1
        programs = set(warm.engine.programs)
        assert {key.size for key in programs if key.kind == "start"} >= {1, 2}
        assert warm.ask(n=3).status_code == 200
        assert set(warm.engine.programs) == programs


@pytest.mark.slow
def test_few_programs_are_kept():
    with running(pipeline_on(1), warm_up=True, batch=1, programs=1) as small:
        small.wait_for(warm=1)
        own = set(small.engine.programs)
        for method in ("ar", "zipar", "ar"):
            assert small.ask(method=method).status_code == 200
            assert own <= set(small.engine.programs) and len(small.engine.programs) == len(own) + 1
        # Each method has two programs, which were dropped when it is asked for again.
        small.wait_for(warm=1, programs=len(own) + 1)
        until(lambda: small.metrics()["lantern_programs_dropped_total"] >= 5)


def test_waiting_clients_are_told_that_the_server_is_stopping(server):
    with pytest.MonkeyPatch.context() as monkeypatch, running(server.library()) as ending:
        gate = Gate(ending.engine, monkeypatch)
        asked = {"prompt": "a lake", "stream": True, "details": True}
        with ending.client.stream("POST", PATH, json=asked) as response:
            told = events(response)
            assert next(told)["type"] == "lantern.queued"
            ending.wait_for(decoding=1)
            ending.worker.refuse()
            gate.open()
            assert list(told)[-1]["error"]["message"] == "the server is stopping: ask again later"
        assert ending.ask().status_code == 503


def test_a_request_that_takes_too_long_is_given_up(server):
    with pytest.MonkeyPatch.context() as monkeypatch, running(server.library(), seconds=0.3) as hasty:
        gate = Gate(hasty.engine, monkeypatch)
        assert hasty.ask().status_code == 504
        (told,) = hasty.told()
        assert "took too long" in told["error"]["message"]
        gate.let(2)
        hasty.wait_for(decoding=0, queue_length=0, pictures_dropped_total=2)


def test_a_picture_that_cannot_be_encoded(server, monkeypatch):
    with monkeypatch.context() as failing:
        failing.setattr("lantern_jax.apps.serve.picture_output.encode_png", None)
        answer = server.ask(**PLAIN)
    assert answer.status_code == 500 and "please report" in answer.json()["error"]["message"]
    assert server.ask(**PLAIN).status_code == 200


def test_unknown_codes_are_taken_from_above():
    assert guessed(np.array([5, 6, 7, 8, -1, -1]), 3).tolist() == [5, 6, 7, 8, 6, 7]
    assert guessed(np.array([5, -1, -1, -1, -1, -1]), 3).tolist() == [5] * 6
    assert guessed(np.array([1, 2, -1, 4, -1, -1]), 3).tolist() == [1, 2, 2, 4, 2, 2]
    assert guessed(np.full(4, -1), 2).tolist() == [0] * 4
