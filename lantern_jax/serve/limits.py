"""What a server takes at most, and how it says no."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Bounds that keep a server well whatever it is sent.

    Attributes:
        body_bytes, body_seconds: of a request's body, and how long it may take to come.
        prompt_letters: of a prompt.
        pictures: of a request.
        queue: pictures that wait, of all requests.
        seconds: from a request's body to its last picture.
        nodes: of a draft tree or window.
        programs: compiled ones that are kept; with more of them all are dropped once nothing runs.
    """

    body_bytes: int = 65_536
    body_seconds: float = 10.0
    prompt_letters: int = 1000
    pictures: int = 10
    queue: int = 64
    seconds: float = 600.0
    nodes: int = 64
    programs: int = 64


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
        """In the shape of OpenAI's errors."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
