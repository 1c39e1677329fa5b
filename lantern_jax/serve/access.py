"""Access: who may send requests, from which pages, and headers that keep a browser safe."""

import base64
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lantern_jax.serve.answers import refusal
from lantern_jax.serve.counters import Counters
from lantern_jax.serve.limits import Refused

# These say nothing about pictures.
OPEN_PATHS = ("/", "/health")
_LOCAL = ("localhost",)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Access:
    """Who may send requests.

    Attributes:
        token: that a request must bear, or None.
        hosts: names by which the server may be called; None for any. A page elsewhere whose name was made to point
            here (DNS rebinding) calls it by that name.
    """

    token: str | None = None
    hosts: Collection[str] | None = None

    @classmethod
    def of(cls, host: str, token: str | None, names: Collection[str] = ()) -> "Access":
        """Allows ``names`` and, if only this machine reaches ``host``, its own; others allow ``names``, or any."""
        if not is_local(host):
            return cls(token, frozenset(names) or None)
        return cls(token, frozenset({*_LOCAL, "127.0.0.1", "::1", host, *names}))

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Raises Refused for a request that is not allowed; names of ``headers`` are in any case."""
        host = urlsplit(f"//{headers.get('host', '')}").hostname
        if self.hosts is not None and host not in self.hosts:
            raise Refused(403, "the Host header is not a name of this server: start it with --allowed-host")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            raise Refused(403, "the request is from a page of another origin: such requests are not answered")
        if self.token is None or path in OPEN_PATHS:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            message = "a token is needed: send the header Authorization: Bearer TOKEN"
            raise Refused(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


class Guard:
    """An application with restricted access; counts its answers by status."""

    def __init__(self, app: ASGIApp, access: Access, counters: Counters, policy: str):
        self._app, self._access, self._counters, self._policy = app, access, counters, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counters.requests[message["status"]] += 1
                headers = MutableHeaders(scope=message)
                for name, value in {**_HEADERS, "Content-Security-Policy": self._policy}.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._access.check(scope["path"], Headers(scope=scope))
        except (Refused, ValueError) as error:
            refused = error if isinstance(error, Refused) else Refused(400, "a header cannot be read")
            await refusal(refused)(scope, receive, answer)
        else:
            await self._app(scope, receive, answer)


def is_local(host: str) -> bool:
    """Tells whether only this machine reaches a server at that name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in _LOCAL


def content_policy(page: str) -> str:
    """Returns a Content-Security-Policy that allows a page its own script, style and server, and nothing else."""

    def sources(tag: str) -> str:
        parts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        marks = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts]
        return " ".join(f"'sha256-{mark}'" for mark in marks) or "'none'"

    return (
        f"default-src 'none'; script-src {sources('script')}; style-src {sources('style')}; img-src blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
