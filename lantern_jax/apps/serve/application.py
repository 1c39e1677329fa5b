"""The server's routes: the page, the image endpoint in OpenAI's shape, models, health and metrics."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from typing import Any

from PIL import Image
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from lantern_jax.apps.serve import answers
from lantern_jax.apps.serve.access import LOGGED, Access, Guard, content_policy
from lantern_jax.apps.serve.counters import Counters
from lantern_jax.apps.serve.forms import read_form, read_start
from lantern_jax.apps.serve.limits import Limits, Refused
from lantern_jax.apps.serve.linked_pictures import LinkedPictures
from lantern_jax.apps.serve.openapi import document
from lantern_jax.apps.serve.picture_request import PictureRequest, read_body, read_request
from lantern_jax.apps.serve.ticket import Done, Queued, Ticket
from lantern_jax.apps.serve.worker import Worker
from lantern_jax.checkpoints.checkpoint import picture_size, size_text
from lantern_jax.pipeline.pipeline import Pipeline

# The longest silence of a stream, in seconds: proxies drop silent connections.
SILENCE = 10.0
_CROSS_ORIGIN = {"allow_methods": ("GET", "POST"), "allow_headers": ("*",)}


def application(
    pipeline: Pipeline,
    name: str,
    access: Access,
    *,
    limits: Limits | None = None,
    batch: int = 4,
    warm_up: bool = True,
) -> Starlette:
    """Returns the server of one model as an ASGI application; its worker runs from startup to shutdown.

    Args:
        name: of the model, as clients give it.
        batch: pictures decoded together.
        warm_up: whether the programs of the default settings are compiled before the first request.

    Returns:
        The application; ``state.worker`` is its ``Worker``.

    Raises:
        LanternError: a checkpoint that takes no prompts or draws no pictures.
    """
    entry = answers.model_entry(pipeline, name)
    example, size = entry["lantern"]["examples"][0], size_text(picture_size(pipeline.checkpoint))
    limits, counters = limits or Limits(), Counters()
    worker = Worker(pipeline, limits, counters, batch, example if warm_up else None)
    page = resources.files("lantern_jax.apps.serve").joinpath("page.html").read_text(encoding="utf-8")
    server = _Server(worker, entry, size, page, LinkedPictures())

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        worker.start()
        yield
        await run_in_threadpool(worker.stop)

    app = Starlette(
        routes=[
            Route("/", server.page),
            Route("/health", server.health),
            Route("/metrics", server.metrics),
            Route("/openapi.json", server.description),
            Route("/v1/models", server.models),
            Route("/v1/models/{name}", server.model),
            Route("/v1/images/generations", server.generations, methods=["POST"]),
            Route("/v1/images/edits", server.edits, methods=["POST"]),
            Route("/pictures/{name}", server.picture),
        ],
        middleware=[
            Middleware(CORSMiddleware, allow_origins=access.origins, **_CROSS_ORIGIN),
            Middleware(Guard, access=access, counters=counters, policy=content_policy(page)),
        ],
        exception_handlers=dict.fromkeys((Refused, HTTPException), _refusal),
        lifespan=lifespan,
    )
    app.state.worker = worker
    return app


@dataclass(frozen=True)
class _Server:
    """Answers requests for one model: its ``entry`` in a list, the ``size`` of its pictures, and the page's HTML."""

    worker: Worker
    entry: dict[str, Any]
    size: str
    html: str
    linked: LinkedPictures
    # Bounds how many forms' pictures are read at a time: a picture of a few KB may take 64 MB, several times over.
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))

    async def page(self, request: Request) -> Response:
        return HTMLResponse(self.html)

    async def health(self, request: Request) -> Response:
        failed = self.worker.has_failed
        health = {"status": "failed" if failed else "ok", "warm": self.worker.is_warm}
        return answers.json_answer(health, 503 if failed else 200)

    async def metrics(self, request: Request) -> Response:
        worker, programs = self.worker, len(self.worker.pipeline.engine.programs)
        gauges = {"queue_length": worker.waiting, "decoding": worker.decoding, "warm": int(worker.is_warm)}
        text = "".join(f"{line}\n" for line in worker.counters.lines(**gauges, programs=programs))
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def description(self, request: Request) -> Response:
        return answers.json_answer(document(self.entry["id"]))

    async def models(self, request: Request) -> Response:
        return answers.json_answer({"object": "list", "data": [self.entry]})

    async def model(self, request: Request) -> Response:
        if request.path_params["name"] != self.entry["id"]:
            raise Refused(
                404, f"no such model: this server has {self.entry['id']}", "model", "model_not_found"
            )
        return answers.json_answer(self.entry)

    async def picture(self, request: Request) -> Response:
        found = self.linked.find(request.path_params["name"])
        if found is None:
            message = f"there is no such picture, or it is gone: they are kept for {self.linked.seconds:g} s"
            raise Refused(404, message)
        # Any page may show a picture whose name it knows.
        headers = {"Cross-Origin-Resource-Policy": "cross-origin"}
        return Response(found[0], media_type=found[1], headers=headers)

    async def generations(self, request: Request) -> Response:
        began = time.perf_counter()
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            # A page elsewhere cannot make a browser send JSON without asking first.
            raise Refused(415, "the body is not announced as JSON: send Content-Type: application/json")
        limits = self.worker.limits
        async with _arriving(request, limits, limits.body_bytes) as arriving:
            fields = read_body(await arriving.body())
        return await self._images(request, self._read(fields), began)

    async def edits(self, request: Request) -> Response:
        began = time.perf_counter()
        return await self._images(request, await self._edit(request), began)

    async def _edit(self, request: Request) -> PictureRequest:
        """Reads a form. Its files are released here, before the pictures wait for their turn."""
        limits, rows = self.worker.limits, self.entry["lantern"]["rows"]
        async with _arriving(request, limits, limits.form_bytes) as arriving:
            fields, files = await read_form(arriving, limits.body_bytes)
        async with self.reading:
            # These may be megabytes of anything: no other client should wait for them.
            picture, keep_rows = await run_in_threadpool(read_start, files, rows, self.size)
        if "start" in fields or (keep_rows is not None and "keep_rows" in fields):
            raise Refused(400, "start is the picture, and keep_rows its mask: give each once", "start")
        return self._read({"keep_rows": keep_rows, **fields}, picture)

    def _read(self, fields: dict[str, Any], picture: Image.Image | None = None) -> PictureRequest:
        return read_request(fields, self.worker.limits, self.entry["id"], self.size, picture)

    async def _images(self, request: Request, wanted: PictureRequest, began: float) -> Response:
        request.scope[LOGGED] = {"pictures": wanted.num, "seed": wanted.seed, "stream": wanted.stream}
        ticket = Ticket(*await run_in_threadpool(self.worker.check, wanted))
        ahead = self.worker.submit(ticket)
        if wanted.stream:
            return _EventStream(self._events(ticket, ahead, began), partial(self.worker.drop, ticket))
        try:
            made = await _unless_gone(request.receive, self._all(ticket))
        finally:
            self.worker.drop(ticket)
        self.worker.counters.answered(time.perf_counter() - began)
        return answers.json_answer(answers.whole_answer(ticket, made, partial(self._lead_to, request)))

    def _lead_to(self, request: Request, file: bytes, ending: str) -> str:
        """Keeps a file; returns its address, under the name that the client called the server by, if it gave one."""
        secure = request.headers.get("x-forwarded-proto", request.url.scheme) == "https"
        name = self.linked.keep(file, ending)
        return f"{'https' if secure else 'http'}://{request.url.netloc}/pictures/{name}"

    async def _all(self, ticket: Ticket) -> list[Done]:
        events = ticket.events(SILENCE, self.worker.limits.seconds)
        made = [event async for event in events if isinstance(event, Done)]
        return sorted(made, key=lambda done: done.index)

    async def _events(self, ticket: Ticket, ahead: int, began: float) -> AsyncIterator[bytes]:
        if ticket.request.details:
            yield answers.encode_event(answers.event_of(ticket, Queued(ahead)))
        left = self.worker.limits.seconds - (time.perf_counter() - began)
        try:
            async for event in ticket.events(SILENCE, left):
                waits = event is None
                yield b": waiting\n\n" if waits else answers.encode_event(answers.event_of(ticket, event))
            self.worker.counters.answered(time.perf_counter() - began)
        except Refused as refusal:
            yield answers.encode_event({"type": "error", **refusal.to_json()})


class _EventStream(StreamingResponse):
    """Server-sent events, until they end or the client leaves."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], drop: Callable[[], None]):
        super().__init__(events, headers={"X-Accel-Buffering": "no"})
        self._drop = drop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _unless_gone(receive, self.stream_response(send))
        finally:
            self._drop()


async def _unless_gone(receive: Receive, work: Awaitable[Any]) -> Any:
    """Returns the result of ``work``; cancels it and raises ClientDisconnect if the client leaves first."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


@contextlib.asynccontextmanager
async def _arriving(request: Request, limits: Limits, most: int) -> AsyncIterator[Request]:
    """Bounds the body of a request that a block reads. Raises Refused if it is too large or comes too slowly."""
    large = Refused(413, f"the body is larger than {most} bytes: send less", headers={"Connection": "close"})
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or int(announced) > most:
        raise large
    read = 0

    async def receive() -> Message:
        nonlocal read
        message = await request.receive()
        read += len(message.get("body", b""))
        if read > most:
            raise large
        return message

    try:
        async with asyncio.timeout(limits.body_seconds):
            yield Request(request.scope, receive)
    except TimeoutError:
        message = f"the body did not come within {limits.body_seconds:g} seconds: send it faster"
        raise Refused(408, message, headers={"Connection": "close"}) from None


async def _refusal(request: Request, error: Refused | HTTPException) -> Response:
    if isinstance(error, HTTPException):
        known = {404: "there is nothing at this path", 405: "this path takes another method"}
        message = known.get(error.status_code, error.detail)
        error = Refused(error.status_code, message, headers=error.headers or {})
    return answers.refusal(error)
