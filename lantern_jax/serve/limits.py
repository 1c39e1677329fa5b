"""What a server takes at most, and how it says no."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lantern_jax.io import errors

# Of a refusal's line, whatever is quoted in it: the longest one of our own lists all knobs.
_LETTERS = 1000


@dataclass(frozen=True)
class Limits:
    """Bounds that keep a server well whatever it is sent.

    Attributes:
        header_seconds: how long a request's headers may take to come, from its connection or its first byte.
        body_bytes, body_seconds: of a request's body, and how long it may take to come.
        idle_seconds: how long a connection is kept for another request.
        connections, address_connections: that are open, of all clients and of one address.
        prompt_letters: of a prompt.
        pictures: of a request.
        queue: pictures that wait, of all requests.
        seconds: from a request's body to its last picture.
        taking_seconds: how long a client may then take to receive it.
        nodes: of a draft tree or window.
        programs: compiled ones that are kept, besides those of the default settings: the ones used last.
    """

    header_seconds: float = 10.0
    body_bytes: int = 65_536
    body_seconds: float = 10.0
    idle_seconds: float = 5.0
    connections: int = 1000
    address_connections: int = 256
    prompt_letters: int = 1000
    pictures: int = 10
    queue: int = 64
    seconds: float = 600.0
    taking_seconds: float = 60.0
    nodes: int = 64
    programs: int = 16


@dataclass(eq=False)
class Refused(Exception):
    """A request that is not served.

    Attributes:
        status: of HTTP.
        message: one line: what was given, what was expected.
        param: the field of the request that is to blame, or None.
        code: a word for programs.
        headers: of the answer.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """In the shape of OpenAI's errors; what would steer a terminal is escaped."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        message = errors.printable(" ".join(self.message.split()), _LETTERS)
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}
