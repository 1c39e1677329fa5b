"""Access: who may send requests, from which pages, and headers that keep a browser safe."""

import base64
import hashlib
import hmac
import ipaddress
import logging
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lantern_jax.apps.serve.answers import refusal
from lantern_jax.apps.serve.counters import Counters
from lantern_jax.apps.serve.limits import BUG, Refused
from lantern_jax.io import errors

# They show no pictures.
_OPEN_PATHS = ("/", "/health", "/openapi.json")
# Anyone who knows the name of a picture may have it.
_OPEN_FOLDER = "/pictures/"
# The entry of a request's scope with additional fields for its line in the log.
LOGGED = "lantern"
# Asked again and again by programs that watch a server.
_UNLOGGED = ("/health", "/metrics")
_log = logging.getLogger(__name__)
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
        token: bearer token that requests must send, or None.
        hosts: names that a request's Host may be, None for any: guards against DNS rebinding, in which a page elsewhere
            sends its own name.
        origins: of pages elsewhere that may send requests, such as "https://example.org".
    """

    token: str | None = None
    hosts: Collection[str] | None = None
    origins: Collection[str] = ()

    @classmethod
    def of(
        cls, host: str, token: str | None, names: Collection[str] = (), origins: Collection[str] = ()
    ) -> "Access":
        """Allows ``names`` and this machine's own; any without ``names`` if other machines can reach ``host``.

        Names and origins may be in any case: browsers send them in lower case.
        """
        own = {"localhost", "127.0.0.1", "::1", host} if names or is_local(host) else set()
        hosts = frozenset(name.lower() for name in {*own, *names})
        return cls(token, hosts or None, frozenset(map(str.lower, origins)))

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Raises Refused for a request that is not allowed; names in ``headers`` may be in any case."""
        try:
            host = urlsplit(f"//{headers.get('host', '')}").hostname
        except ValueError:
            raise Refused(400, "the Host header cannot be read") from None
        if self.hosts is not None and host not in self.hosts:
            raise Refused(403, "the Host header is not a name of this server: start it with --allowed-host")
        origin = headers.get("origin")
        own = origin is None or origin.partition("://")[2] == headers.get("host")
        if not own and origin not in self.origins:
            message = "the request is from a page of another origin: start the server with --allowed-origin"
            raise Refused(403, message)
        if self.token is None or path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER):
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            message = "a token is needed: send the header Authorization: Bearer TOKEN"
            raise Refused(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


class Guard:
    """An application with restricted access, which counts its answers by status, a bug's too, and logs requests.

    The status is 0 if the client left before it had the whole answer.
    """

    def __init__(self, app: ASGIApp, access: Access, counters: Counters, policy: str):
        self._app, self._access, self._counters, self._policy = app, access, counters, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        began, status = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in {**_HEADERS, "Content-Security-Policy": self._policy}.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            try:
                self._access.check(scope["path"], Headers(scope=scope))
            except Refused as refused:
                await refusal(refused)(scope, receive, answer)
            else:
                await self._app(scope, receive, answer)
        except ClientDisconnect:
            status = 0
        except Exception:
            # A bug: Starlette would answer outside of this, without these headers. The connection ends with the answer.
            if not status:
                await refusal(Refused(500, BUG, headers={"Connection": "close"}))(scope, receive, answer)
            raise
        finally:
            self._counters.requests[status] += 1
            if status != 200 or scope["path"] not in _UNLOGGED:
                _log_request(scope, status, time.perf_counter() - began)


def _log_request(scope: Scope, status: int, seconds: float) -> None:
    """Logs a request in a line; status 0 is a client that left."""
    client, _ = scope.get("client") or ("", 0)
    more = "".join(f", {name} {value}" for name, value in scope.get(LOGGED, {}).items())
    path = errors.short(scope["path"], 200)
    _log.info("%s %s %d in %.2f s, %s%s", scope["method"], path, status, seconds, client, more)


def is_local(host: str) -> bool:
    """Tells whether only this machine can reach a server at that name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


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
