"""``lantern serve``: a page and an image endpoint."""

import argparse
import os
import socket
import warnings
from pathlib import Path

from lantern_jax.apps.commands.arguments import host_name, number, origin, whole
from lantern_jax.apps.commands.options import Command, open_pipeline
from lantern_jax.apps.terminal.terminal import say, telling
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError, MissingExtra
from lantern_jax.io.files import read_text
from lantern_jax.io.interruption import as_the_end

TOKEN = "LANTERN_TOKEN"
# The most bytes of its file.
_LONGEST_TOKEN = 4096
# A week; the system's clocks overflow at a few hundred years.
MOST_SECONDS = 7 * 24 * 3600


def add(commands) -> None:
    """Adds ``serve`` to a parser's commands."""
    shared = ("--model", "--size", "--dtype", "--mesh", "--tuned", "--search-tilings")
    command = Command(commands, "serve", "a web page and an image endpoint", _run, *shared)
    take = command.take
    take("--host", "NAME", "address to bind to", "127.0.0.1")
    take("--port", "N", "port; 0 finds a free one", 8000, type=whole(0, 65535))
    take("--batch", "B", "pictures decoded together (default: 8, on CPUs 4)", type=whole())
    take("--queue", "N", "pictures that may wait", 64, type=whole())
    take("--most", "N", "pictures per request, at most", 10, type=whole())
    take("--seconds", "S", "seconds that a request may take", 600, type=number(0, MOST_SECONDS, above=True))
    take("--connections", "N", "open connections, of all clients", 500, type=whole())
    programs = "compiled programs that are kept besides those of the default settings"
    take("--programs", "N", programs, 16, type=whole())
    token = f"holds the bearer token that requests must send (default: the variable {TOKEN}, else none)"
    take("--token-file", "FILE", token)
    name = "a name by which browsers may call the server, behind a proxy say; may be given again"
    take("--allowed-host", "NAME", name, action="append", type=host_name)
    page = "a page elsewhere that may ask, such as https://example.org; may be given again"
    take("--allowed-origin", "ORIGIN", page, action="append", type=origin)
    take("--served-model-name", "NAME", "what clients call the model (default: its folder's name)")
    command.switch("--quiet", "no line for each request on stderr")


def _run(arguments: argparse.Namespace) -> None:
    warnings.simplefilter("ignore", errors.IgnoredWords)  # Answers tell clients.
    token = _token(arguments.token_file)
    try:
        import python_multipart  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtra(
            "lantern serve needs Starlette, uvicorn and python-multipart: "
            "pip install starlette uvicorn python-multipart"
        ) from None
    bound = _bound(arguments.host, arguments.port)

    from lantern_jax.apps.serve.access import Access, is_local
    from lantern_jax.apps.serve.application import application
    from lantern_jax.apps.serve.limits import Limits
    from lantern_jax.apps.serve.server import Server, log_to_stderr

    log_to_stderr(not arguments.quiet)
    with bound:
        pipeline = open_pipeline(arguments)
        # A request for more pictures than the queue holds could never be served.
        most = min(arguments.most, arguments.queue)
        limits = Limits(
            queue=arguments.queue, pictures=most, seconds=arguments.seconds, programs=arguments.programs,
            connections=arguments.connections,
        )  # fmt: skip
        name = arguments.served_model_name or Path(arguments.model).resolve().name
        access = Access.of(
            arguments.host, token, arguments.allowed_host or (), arguments.allowed_origin or ()
        )
        batch = arguments.batch or (4 if pipeline.platform == "cpu" else 8)
        app = application(pipeline, name, access, limits=limits, batch=batch)
        if token is None and not is_local(arguments.host):
            say("lantern: anybody who reaches this address may send requests: give --token-file", error=True)
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        say(f"lantern: serving {name} at http://{host}:{bound.getsockname()[1]}/, Ctrl-C ends it")
        # uvicorn handles the signals itself, and raises them again at its end.
        with telling(None), as_the_end():
            Server(app).run(sockets=[bound])
        say("lantern: stopped", error=True)


def _token(file: str | None) -> str | None:
    """Returns the token of a file or the environment. Raises LanternError unless it is one word of ASCII."""
    if file is None:
        token = os.environ.get(TOKEN)
        place = f"the variable {TOKEN}"
    else:
        token, place = read_text(file, _LONGEST_TOKEN).strip(), errors.short(file)
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise LanternError(f"{place} holds no token: give one word of letters, digits and signs")
    return token


def _bound(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at an address. Raises OSError, in one line, where that is impossible."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        # Parts of a name that are empty or have over 63 letters cannot be encoded.
        why = "not a name" if isinstance(error, UnicodeError) else error.strerror or error
        shown = errors.printable(host, 100)
        raise OSError(f"cannot bind to {shown}:{port} ({why}): give another --host or --port") from None
