"""Wrong and hostile requests are refused in one line, and others are served afterwards."""

import json
import time
from functools import partial

import httpx
import pytest
from starlette.testclient import TestClient

from lantern_jax.apps.serve.access import Access, is_local
from lantern_jax.apps.serve.application import application
from lantern_jax.apps.serve.picture_request import FIELDS
from lantern_jax.apps.serve.server import Escaped
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from tests.serve.running import LIMITS, PATH, in_threads, strange_lines
from tests.tiny_checkpoint import tiny_pipeline

LAKE = {"prompt": "a lake"}
# Name -> a body, and a word of the line that refuses it.
BODIES = {
    "no prompt": ({}, "prompt is missing"), "empty prompt": ({"prompt": " "}, "empty prompt"),
    "long prompt": ({"prompt": "lake " * 400}, "letters"),
    "half a character": ({"prompt": "a lake \ud800"}, "not text in UTF-8"),
    "no pictures": ({**LAKE, "n": 0}, "n 0"), "too many": ({**LAKE, "n": 10**9}, "from 1 to 10"),
    "size": ({**LAKE, "size": "9999x99999"}, "WIDTHxHEIGHT"),
    "quality of png": ({**LAKE, "output_compression": 50}, "jpeg and webp"),
    "address of a stream": ({**LAKE, "response_format": "url", "stream": True}, "leave response_format"),
    "unknown field": ({**LAKE, "promt": "x"}, "unknown field 'promt': did you mean prompt?"),
    "field of a method": ({**LAKE, "nodes": 9}, "write method led:nodes=..."),
    "no object": ([LAKE], "object"), "no JSON": (b"prompt=a lake", "the body is not JSON"),
    "infinite": (b'{"prompt": "a lake", "temperature": Infinity}', "not a finite number"),
    "deep": (b'{"prompt": ' + b"[" * 2000 + b"]" * 2000 + b"}", "nested too deeply"),
}  # fmt: skip
# JSON values that no field takes.
VALUES = ({"a": 1}, [[1]] * 3000, "x" * 5000, "a\x1b[2J\x00\u202e\r\nHTTP/1.1 200 OK")
# Ways to decode that are misspelt or impossible, and what the line that refuses them says.
WAYS = (
    ({"method": "letern"}, "unknown method 'letern'"), ({"method": "lantern:lam=3"}, "has no field 'lam'"),
    ({"method": "led:nodes=-1"}, "nodes -1 is not valid"), ({"method": "led:" * 3000}, "give name:field=value"),
    ({"method": ["led"]}, "give text such as"), ({"rule": "nearr"}, "did you mean near?"),
    ({"drafting": "tree:tree=/etc/tree.json"}, "files are not read here"),
    ({"rule": "near:tau=1,tau=2"}, "twice"), ({"coupling": "gumble"}, "did you mean gumbel?"),
    # More than a server takes.
    ({"drafting": "tree:tree=" + "+".join(f"{i}.{i}.{i}" for i in range(30))}, "nodes of its tree 90 is more"),
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


def test_a_method_that_is_impossible_is_refused_in_the_librarys_line(server):
    for way, words in WAYS:
        answer = server.ask(**way)
        error = error_of(answer)
        assert answer.status_code == 422 and words in error["message"] and len(error["message"]) < 700, error
        assert error["param"] in way


def test_each_wrong_field_is_named_in_a_short_line(server):
    """Sends every field with every odd value."""
    for field in (*FIELDS, "x" * 400, "a\x1b[2J"):
        for value in VALUES:
            if field in ("user", "prompt", "negative_prompt", "model") and isinstance(value, str):
                continue  # Any text is accepted, or its words are to blame.
            response = posted(server, json.dumps(LAKE | {field: value}).encode())
            error = error_of(response)
            assert response.status_code in (400, 422), (field, error)
            assert field not in FIELDS or error["param"] == field, error
            assert (
                error["message"].isprintable()
                and len(error["message"]) < 1100
                and "x" * 201 not in error["message"]
            )


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
def test_a_failed_run_is_reported_in_one_line(server, monkeypatch, caplog, error, status, said):
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


def test_a_bug_in_a_route_is_counted(server, monkeypatch):
    name = 'lantern_requests_total{status="500"}'
    before = server.metrics().get(name, 0)
    with monkeypatch.context() as failing:
        failing.setattr("lantern_jax.apps.serve.application.read_body", None)
        answer = server.ask()
    assert answer.status_code == 500 and "please report it" in error_of(answer)["message"]
    assert server.metrics()[name] == before + 1


def test_others_are_drawn_beside_a_picture_that_cannot_be(server, monkeypatch):
    error = LanternError("the pictures are not finite: fetch it again")
    plain, failing = server.worker._tools.draw, [error]

    def draw(codes):
        if failing:
            raise failing.pop()
        return plain(codes)

    monkeypatch.setattr(server.worker._tools, "draw", draw)
    began = time.monotonic()
    answers = in_threads([partial(server.ask, seed=seed) for seed in (1, 2)])
    good, bad = sorted(answers, key=lambda answer: answer.status_code)
    assert (good.status_code, bad.status_code) == (200, 500) and str(error) == error_of(bad)["message"]
    assert time.monotonic() - began < LIMITS.seconds / 2


def test_unknown_paths_are_refused(server):
    for path in ("/etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/v1/models/x"):
        response = server.client.get(path)
        assert response.status_code == 404 and error_of(response)


def test_pages_of_other_sites_get_nothing(server):
    here = server.url.removeprefix("http://")
    for headers, status in (
        ({"Host": "evil.example:8000"}, 403), ({"Host": "["}, 400), ({"Origin": "http://["}, 403),
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
    counted = ("pictures_total", "tokens_total", "rounds_total", "answers_total")
    assert [more[f"lantern_{name}"] for name in counted] == [1, 16, 15, 1]
    assert more['lantern_requests_total{status="400"}'] == 1
    assert strange_lines("no metric") == ["no metric"]
