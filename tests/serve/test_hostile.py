"""Wrong and hostile requests are refused in one line, and others are served afterwards."""

import dataclasses
import json
import socket
import time
from functools import partial

import httpx
import pytest
from starlette.testclient import TestClient

from lantern_jax.apps.serve.access import Access, is_local
from lantern_jax.apps.serve.application import application
from lantern_jax.apps.serve.counters import Counters
from lantern_jax.apps.serve.requests import HARMLESS, OWN, PictureRequest
from lantern_jax.apps.serve.server import Escaped
from lantern_jax.apps.serve.worker import Worker
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings.settings import OPTIONS
from tests.serve.running import BATCH, HEAD, LIMITS, PATH, in_threads, said, strange_lines
from tests.tiny_checkpoint import tiny_checkpoint, tiny_pipeline

LAKE = {"prompt": "a lake"}
# Name -> a body, and a word of the line that refuses it.
BODIES = {
    "no prompt": ({}, "prompt"), "empty prompt": ({"prompt": " "}, "empty prompt"),
    "long prompt": ({"prompt": "lake " * 400}, "letters"),
    "half a character": ({"prompt": "a lake \ud800"}, "not text in UTF-8"),
    "terminal codes": ({"prompt": "a lake \x1b[2J\x00"}, "cannot be shown"),
    "no pictures": ({**LAKE, "n": 0}, "n 0"), "too many": ({**LAKE, "n": 10**9}, "from 1 to 10"),
    "size": ({**LAKE, "size": "9999x99999"}, "WIDTHxHEIGHT"), "gif": ({**LAKE, "output_format": "gif"}, "webp"),
    "quality of png": ({**LAKE, "output_compression": 50}, "jpeg and webp"),
    "no quality": ({**LAKE, "output_format": "jpeg", "output_compression": 101}, "0 to 100"),
    "address of a stream": ({**LAKE, "response_format": "url", "stream": True}, "leave response_format"),
    "transparent": ({**LAKE, "background": "transparent"}, "opaque"),
    "unknown field": ({**LAKE, "image": "x"}, "unknown field 'image'"),
    "field of a method": ({**LAKE, "nodes": 9}, "write method led:nodes=..."),
    "batch": ({**LAKE, "batch": 512}, "batch"),
    "partial images": ({**LAKE, "stream": True, "partial_images": 4}, "from 0 to 3"),
    "no object": ([LAKE], "object"), "no JSON": (b"prompt=a lake", ""), "nothing": (b"", ""),
    "no text": (b'{"prompt": "\xff\xfe"}', ""), "infinite": (b'{"prompt": "a lake", "temperature": Infinity}', ""),
    "a long number": (b'{"prompt": "a lake", "seed": ' + b"9" * 5000 + b"}", ""),
    "deep": (b'{"prompt": ' + b"[" * 2000 + b"]" * 2000 + b"}", ""),
}  # fmt: skip
KNOWN = (*OWN, *HARMLESS, *OPTIONS)
# JSON values as they are written, some of which Python's own reader turns into something else.
VALUES = {
    "400 digits": "9" * 400, "less than 400 digits say": "-" + "9" * 400, "5000 digits": "9" * 5000,
    "no float": "1e400", "400 digits deep inside": "[" * 20 + "9" * 400 + "]" * 20,
    "an object": f'{{"a": {"9" * 400}}}', "many numbers": json.dumps([1] * 3000),
    "long text": json.dumps("x" * 5000), "steering text": json.dumps("a\x1b[2J\x00\u202e\r\nHTTP/1.1 200 OK"),
    "half a character": '"\\ud800"',
}  # fmt: skip
# Ways to decode that are misspelt or impossible, and what the line that refuses them says.
WAYS = (
    ({"method": "letern"}, "unknown method 'letern'"), ({"method": "lantern:lam=3"}, "has no field 'lam'"),
    ({"method": "led:nodes=-1"}, "nodes -1 is not valid"), ({"method": "led:nodes=" + "9" * 400}, "nodes"),
    ({"method": "led:" * 3000}, "give name:field=value"), ({"method": "led:nodes=led:nodes=9"}, "nodes"),
    ({"method": ["led"]}, "is not text"), ({"method": {"led": {"nodes": 9}}}, "is not text"),
    ({"drafting": "tree:tree=/etc/tree.json"}, "files are not read here"),
    ({"drafting": "tree:tree=/etc/passwd"}, "unknown tree"),
    ({"drafting": "oak"}, "unknown drafting 'oak'"), ({"rule": "nearr"}, "did you mean near?"),
    ({"rule": "auto"}, "unknown rule 'auto'"), ({"rule": "near:tua=1"}, "choose one of tau, ratio"),
    ({"rule": "near:tau=nan"}, "tau nan"), ({"rule": "near:tau=1,tau=2"}, "twice"),
    ({"coupling": "gumble"}, "did you mean gumbel?"), ({"coupling": "gumbel:noise=1"}, "has no field 'noise'"),
    # More than a server takes.
    ({"drafting": "tree:tree=" + "+".join(f"{i}.{i}.{i}" for i in range(30))}, "has 90 nodes: this server takes 64"),
    ({"method": "jacobi:window=4000"}, "window 4000"), ({"method": "jacobi:window=1|4000|1"}, "window 4000"),
    ({"rule": "tolerance:samples=1000000"}, "samples 1000000"), ({"drafting": "dynamic:nodes=4096"}, "nodes 4096"),
    # Parts that fit neither each other nor the model.
    ({"rule": "near", "coupling": "rejection"}, "rule near needs the coupling gumbel"),
    ({"coupling": "rejection", "method": "led"}, "drafting led"), ({"method": "medusa"}, "medusa is wanted to guess"),
    ({"drafting": "tree:tree=9999", "temperature": 1}, "child rank"),
)  # fmt: skip


def error_of(response: httpx.Response) -> dict:
    error = response.json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["message"] and "\n" not in error["message"]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"
    return error


@pytest.fixture(autouse=True)
def and_well_afterwards(server):
    yield
    assert server.ask(method="ar").status_code == 200


def posted(server, content, **headers) -> httpx.Response:
    return server.client.post(PATH, content=content, headers={"Content-Type": "application/json", **headers})


def test_wrong_bodies_are_refused(server):
    for name, (body, word) in BODIES.items():
        response = posted(server, body if isinstance(body, bytes) else json.dumps(body).encode())
        assert response.status_code == 400, (name, response.text)
        error = error_of(response)
        assert word in error["message"] and len(error["message"]) < 700, (name, error)
        assert error["type"] == "invalid_request_error"
    assert server.ask(model="gpt-image-1").status_code == 404


@pytest.mark.parametrize(("way", "words"), WAYS, ids=range(len(WAYS)))
def test_a_way_to_decode_that_is_misspelt_or_impossible_is_refused_in_the_librarys_line(server, way, words):
    answer = server.ask(**way)
    error = error_of(answer)
    assert answer.status_code == 422 and words in error["message"] and len(error["message"]) < 700, error
    assert error["param"] in way


def wrong_error(field, error):
    """Returns what is wrong with the refusal of a body; empty where it is one short line that names the field."""
    message, param = error["message"], error["param"]
    if field in KNOWN and param != field:
        return f"blames {param}"
    if not message.isprintable() or (param and not param.isprintable()):
        return "unprintable"
    return "an echo" if any(mark * 201 in message for mark in "9x") or len(message) > 1100 else ""


def test_no_field_is_echoed_and_each_is_named(server):
    """Sends every field with every odd value."""
    wrong = []
    for field in (*KNOWN, "x" * 400, "a\x1b[2J"):
        for name, value in VALUES.items():
            if field in ("user", "prompt") and value.endswith('"'):
                continue  # Any text is accepted, and in a prompt the words are to blame.
            prompt = "" if field == "prompt" else '"prompt": "a lake", '
            response = posted(server, f"{{{prompt}{json.dumps(field)}: {value}}}".encode())
            if response.status_code not in (400, 404, 422):
                wrong.append((field, name, response.status_code, response.text[:80]))
            elif fault := wrong_error(field, error_of(response)):
                wrong.append((field, name, fault, response.text[:80]))
    assert not wrong


def test_a_prompt_of_20_megabytes_is_not_read(server, monkeypatch):
    """With and without an announced length."""
    content = b'{"prompt": "' + b"lake " * 4_000_000 + b'"}'
    for body in (content, (content[start : start + 65536] for start in range(0, len(content), 65536))):
        with monkeypatch.context() as unread:
            unread.setattr("lantern_jax.apps.serve.application.read_request", None)
            response = posted(server, body)
        assert response.status_code == 413 and error_of(response) and len(response.content) < 500


@pytest.mark.parametrize(("error", "status", "said"), [
    (ValueError("shapes (1,)\nand (2,) do not fit \x1b[2J" + "y" * 9000), 500, "please report it"),
    (RuntimeError("the device is gone"), 500, "please report it"),
    (LanternError("the target's parameter x holds no numbers: fetch it again"), 500, "fetch it again"),
    (RuntimeError("RESOURCE_EXHAUSTED: out of memory"), 503, "too little memory"),
], ids=["shapes", "device", "checkpoint", "memory"])  # fmt: skip
def test_a_failed_run_is_reported_in_one_line_and_logged(server, monkeypatch, caplog, error, status, said):
    """The answer to a bug asks for a report and does not quote the bug, which is in the log with its traceback."""

    def fail(*arguments):
        raise error

    with monkeypatch.context() as failing:
        failing.setattr(server.engine, "advance", fail)
        answer = server.ask(n=2)
    told = error_of(answer)
    assert answer.status_code == status and told["type"] == "server_error"
    assert said in told["message"] and errors.printable(told["message"]).isprintable()
    if not isinstance(error, LanternError):
        assert str(error) not in told["message"]
    if status == 500:
        (record,) = caplog.records
        assert record.exc_info[1] is error
        logged = Escaped().format(record)
        assert "in fail" in logged and "\x1b" not in logged and len(logged) < 10_000
        assert all(line.startswith("  ") for line in logged.splitlines()[1:])


def test_a_missing_folder_is_not_the_requests_fault(tmp_path):
    """What is in memory is still served."""
    checkpoint = dataclasses.replace(tiny_checkpoint(), directory=tmp_path / "gone")
    worker = Worker(Pipeline(checkpoint, tuned="auto"), LIMITS, Counters(), BATCH)
    worker.check(PictureRequest("a lake", 1, 0, {}, stream=False, partial_images=0, details=False))


def test_a_bug_in_a_route_is_counted_and_has_the_usual_headers(server, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("no such thing")

    name = 'lantern_requests_total{status="500"}'
    before = server.metrics().get(name, 0)
    with monkeypatch.context() as failing:
        failing.setattr("lantern_jax.apps.serve.application.decoded", fail)
        answer = server.ask()
    assert answer.status_code == 500 and "please report it" in error_of(answer)["message"]
    assert server.metrics()[name] == before + 1


def test_a_picture_that_cannot_be_drawn_is_reported_soon_and_others_are_drawn(server, monkeypatch):
    error = LanternError("the pictures are not finite: fetch it again")
    plain, failing = server.worker._tools.painter.draw, [error]

    def draw(codes):
        if failing:
            raise failing.pop()
        return plain(codes)

    monkeypatch.setattr(server.worker._tools.painter, "draw", draw)
    began = time.monotonic()
    answers = in_threads([partial(server.ask, seed=seed) for seed in (1, 2)])
    good, bad = sorted(answers, key=lambda answer: answer.status_code)
    assert (good.status_code, bad.status_code) == (200, 500) and str(error) == error_of(bad)["message"]
    assert time.monotonic() - began < LIMITS.seconds / 2


ELSEWHERE = "GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
FILE = "etc/passwd"
PATHS = (f"/{FILE}", f"/../../{FILE}", f"/%2e%2e/%2e%2e/{FILE}", f"/static/..%2f..%2f{FILE}", "/v1/models/x")
# What comes over a connection -> the status of its answer.
RAW_REQUESTS = {ELSEWHERE.format(path): 404 for path in PATHS} | {
    f"{HEAD}Range: {'9' * 400}\r\nContent-Length: {'9' * 400}\r\n\r\n": 400,
    "\x16\x03\x01 hello\r\n\r\n": 400,
}


@pytest.mark.parametrize("text", RAW_REQUESTS, ids=lambda text: repr(text[:40]))
def test_unknown_paths_and_malformed_requests_are_refused(server, text):
    with socket.create_connection(server.address, timeout=10) as connection:
        connection.sendall(text.encode("latin-1"))
        answer = said(connection)
    assert answer.startswith(b"HTTP/1.1 %d " % RAW_REQUESTS[text]) and b"9" * 201 not in answer


def test_unsupported_methods_are_refused(server):
    for method, path in (("GET", PATH), ("DELETE", "/"), ("PUT", "/v1/models")):
        response = server.client.request(method, path)
        assert response.status_code == 405 and error_of(response)


def test_pages_of_other_sites_get_nothing(server):
    here = server.url.removeprefix("http://")
    for headers, status in (
        ({"Host": "evil.example"}, 403), ({"Host": "evil.example:8000"}, 403), ({"Host": "["}, 400),
        ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Content-Type": "text/plain"}, 415),
        ({"Host": here, "Origin": f"http://{here}"}, 400),
    ):  # fmt: skip
        response = posted(server, b"{}", **headers)
        assert response.status_code == status and error_of(response), headers
    assert "access-control-allow-origin" not in response.headers


def test_a_token_is_required_if_the_server_has_one():
    access = Access.of("0.0.0.0", "secret")
    client = TestClient(application(tiny_pipeline(), "tiny", access, limits=LIMITS, warm_up=False))
    for given in (None, "Bearer secrets", b"Bearer \xff\xe9", "Basic secret", "Bearer secret"):
        headers = {} if given is None else {"Authorization": given}
        answers = [client.get(path, headers=headers) for path in ("/v1/models", "/metrics", "/", "/health")]
        answers.append(client.post(PATH, content=b"", headers=headers | {"Content-Type": "application/json"}))
        expected = [200, 200, 200, 200, 400] if given == "Bearer secret" else [401, 401, 200, 200, 401]
        assert [answer.status_code for answer in answers] == expected, given
        if given is None:
            assert answers[0].headers["www-authenticate"] == "Bearer"
            assert error_of(answers[0])["code"] == "invalid_api_key"


def test_names_of_this_machine():
    assert is_local("127.0.0.1") and is_local("localhost") and is_local("::1")
    assert not is_local("0.0.0.0") and not is_local("example.org") and not is_local("::")
    access = Access.of("LocalHost", None, ["Lantern.example"], ["https://Page.example"])
    for name in ("lantern.example", "LANTERN.example:8443", "localhost:80"):
        access.check("/", {"host": name, "origin": "https://page.example"})
    assert Access.of("0.0.0.0", None).hosts is None
    # A monitor of the server asks on the server's machine.
    Access.of("0.0.0.0", None, ["lantern.example"]).check("/health", {"host": "127.0.0.1:8000"})


def test_metrics_are_in_prometheus_format(server):
    before = server.metrics()
    fields = {"user": "me", "quality": "high", "background": "opaque", "moderation": "low", "style": None}
    server.ask(method="ar", output_format="png", model="tiny", **fields)
    server.ask(n=0)
    assert not strange_lines(server.client.get("/metrics").text)
    after = server.metrics()
    more = {name: after[name] - before.get(name, 0) for name in after}
    counted = ("pictures_total", "tokens_total", "rounds_total", "request_seconds_count")
    assert [more[f"lantern_{name}"] for name in counted] == [1, 16, 15, 1]
    assert more['lantern_requests_total{status="400"}'] == 1
    assert after['lantern_request_seconds_bucket{le="+Inf"}'] == after["lantern_request_seconds_count"]
    buckets = [value for key, value in after.items() if "bucket" in key]
    assert buckets == sorted(buckets)
    assert strange_lines("no metric") == ["no metric"]
