"""Bodies and byte streams that a client may send by mistake or on purpose, for ``lantern serve``.

A body is one that works, with one field made hostile; a stream is what comes over a connection, piece by piece.
"""

import json
import random
import socket
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lantern_jax.apps.serve.requests import HARMLESS, OWN
from lantern_jax.settings.settings import OPTIONS
from tests.hostile.files import damage

PATH = "/v1/images/generations"
# JSON values as they are written, some of which Python's own reader turns into something else.
VALUES = {
    "400 digits": "9" * 400, "less than 400 digits say": "-" + "9" * 400, "5000 digits": "9" * 5000,
    "no float": "1e400", "400 digits deep inside": "[" * 20 + "9" * 400 + "]" * 20,
    "an object": f'{{"a": {"9" * 400}}}', "many numbers": json.dumps([1] * 3000),
    "long text": json.dumps("x" * 5000), "steering text": json.dumps("a\x1b[2J\x00\u202e\r\nHTTP/1.1 200 OK"),
    "half a character": '"\\ud800"',
}  # fmt: skip
FIELDS = (*OWN, *HARMLESS, *OPTIONS, "x" * 400, "a\x1b[2J")
# An answer that repeats more than this is an echo.
QUOTED = 200
GET = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Body(NamedTuple):
    """A field, what was made of it, and the whole body."""

    field: str
    name: str
    content: bytes


def bodies() -> Iterator[Body]:
    for field in FIELDS:
        for name, value in VALUES.items():
            prompt = "" if field == "prompt" else '"prompt": "a lake", '
            yield Body(field, name, f"{{{prompt}{json.dumps(field)}: {value}}}".encode())


def wrong_error(body: Body, error: dict) -> str:
    """Returns what is wrong with the refusal of a body; empty where it is one line that names the field."""
    message, param = error["message"], error["param"]
    if body.field in (*OWN, *HARMLESS, *OPTIONS) and param != body.field:
        return f"blames {param}"
    if not message.isprintable() or (param and not param.isprintable()):
        return "unprintable"
    if any(mark * (QUOTED + 1) in message for mark in "9x") or len(message) > 1100:
        return "an echo"
    return ""


class Stream(NamedTuple):
    """What a client sends: pieces, with a pause in seconds between them."""

    name: str
    pieces: Sequence[bytes]
    pause: float


def streams(seed: int, count: int) -> Iterator[Stream]:
    """Requests that are cut, slow, doubled or damaged; none of them asks for a picture that could be made."""
    chance = random.Random(seed)
    body = json.dumps({"prompt": "a lake", "n": 0}).encode()
    whole = [
        GET.encode(),
        GET.replace("/health", "/").encode() * 3,
        HEAD.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body),
        HEAD.encode() + b"Content-Length: %d\r\n\r\n{" % 20_000_000,
        HEAD.encode() + b"Content-Length: " + b"9" * 400 + b"\r\n\r\n",
        HEAD.replace(PATH, "/health").encode() + b"Content-Length: 400\r\n\r\n{",
        HEAD.encode() + b"Expect: 100-continue\r\nContent-Length: 50\r\n\r\n",
        b"GET /" + b"a" * 100_000,
        b"\r\n" * 50,
        b"\x16\x03\x01\x02\x00\x01" + bytes(chance.randrange(256) for _ in range(100)),
    ]
    for _ in range(count):
        content = chance.choice(whole)
        what, content = damage(content, chance) if chance.random() < 0.7 else ("whole", content)
        size = chance.choice((1, 7, 100_000_000))
        pieces = [content[start : start + size] for start in range(0, len(content), size)][:200]
        yield Stream(f"{what}, {content[:30]!r} by {size}", pieces, chance.choice((0.0, 0.02)))


def send(address: tuple[str, int], stream: Stream, seconds: float) -> float:
    """Sends a stream, ends its side, reads the answer, returns the seconds until the server closed; TimeoutError after
    ``seconds``."""
    began = time.monotonic()
    with socket.create_connection(address, timeout=seconds) as connection:
        try:
            for piece in stream.pieces:
                connection.sendall(piece)
                if stream.pause:
                    time.sleep(stream.pause)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                if time.monotonic() - began > seconds:
                    raise TimeoutError(stream.name)
        except TimeoutError:
            raise
        except OSError:  # The server has closed it before the end.
            pass
    return time.monotonic() - began
