"""What a server accepts at most, and how it refuses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lantern_jax.io import errors

BUG = "this is a bug of lantern_jax: please report it with the lines of the server's log"
# The most letters of a refusal's line; our longest one lists all fields.
_LETTERS = 1000


@dataclass(frozen=True)
class Limits:
    """Bounds on what clients may send and keep.

    Attributes:
        body_bytes, body_seconds: size of a request's body, and time for it to arrive.
        form_bytes: size of a body that holds a picture.
        connections: open ones, of all clients.
        prompt_letters: length of a prompt.
        pictures: per request.
        queue: waiting pictures of all requests.
        seconds: time from a request's body to its last picture.
        nodes: of a draft tree or window.
        programs: compiled programs that are kept besides those of the default settings, the most recently used.
    """

    body_bytes: int = 65_536
    form_bytes: int = 8_388_608
    body_seconds: float = 10.0
    connections: int = 500
    prompt_letters: int = 1000
    pictures: int = 10
    queue: int = 64
    seconds: float = 600.0
    nodes: int = 64
    programs: int = 16


@dataclass(eq=False)
class Refused(Exception):
    """A request that is not served.

    Attributes:
        status: of HTTP.
        message: one line: what was given, what was expected.
        param: the field of the request that is wrong, or None.
        code: a word for programs.
        headers: of the answer.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns it in the shape of OpenAI's errors, with characters that steer a terminal escaped."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        message = errors.printable(" ".join(self.message.split()), _LETTERS)
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}
