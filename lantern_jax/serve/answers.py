"""Answers in the shape of OpenAI's image endpoint, with our figures beside them under the name ``lantern``."""

import base64
import json
import time
from collections.abc import Sequence
from typing import Any

from lantern_jax.serve.requests import Asking
from lantern_jax.serve.ticket import Done, Progress, Ticket
from lantern_jax.settings.settings import settings_json


def encode_json(value: Any) -> bytes:
    """JSON in ASCII: whatever text is in it, it can be sent."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def encode_event(value: dict[str, Any]) -> bytes:
    """A server-sent event of the value's own type."""
    return b"event: %s\ndata: %s\n\n" % (value["type"].encode("ascii"), encode_json(value))


def whole_answer(ticket: Ticket, made: Sequence[Done], side: int) -> dict[str, Any]:
    """The answer that holds all pictures of a request."""
    data = [{"b64_json": _text(done.png), "lantern": _figures(ticket.asking, done)} for done in made]
    return {
        "created": int(time.time()),
        **_common(side),
        "data": data,
        "usage": _usage(made),
        "lantern": _request(ticket),
    }


def queued_event(ticket: Ticket, ahead: int) -> dict[str, Any]:
    """The first event of a detailed stream: how many pictures wait already, and what will be made."""
    return {"type": "lantern.queued", "ahead": ahead, "lantern": _request(ticket)}


def progress_event(now: Progress, side: int) -> dict[str, Any]:
    """A picture on its way: one that was asked for, or how far it is."""
    event: dict[str, Any] = {"type": "lantern.progress", "index": now.index}
    if now.partial is not None:
        event["type"] = "image_generation.partial_image"
        event |= {"partial_image_index": now.partial, "created_at": int(time.time()), **_common(side)}
    if now.png is not None:
        event["b64_json"] = _text(now.png)
    figures = {
        "tokens": now.tokens,
        "total": now.total,
        "rounds": now.rounds,
        "seconds": round(now.seconds, 4),
    }
    return {**event, "lantern": figures}


def completed_event(ticket: Ticket, done: Done, side: int) -> dict[str, Any]:
    """A picture that is done."""
    return {
        "type": "image_generation.completed",
        "index": done.index,
        "b64_json": _text(done.png),
        "created_at": int(time.time()),
        **_common(side),
        "usage": _usage([done]),
        "lantern": {**_request(ticket), **_figures(ticket.asking, done)},
    }


def _common(side: int) -> dict[str, str]:
    return {"size": f"{side}x{side}", "quality": "high", "background": "opaque", "output_format": "png"}


def _request(ticket: Ticket) -> dict[str, Any]:
    return {"seed": ticket.asking.seed, "settings": settings_json(ticket.settings)}


def _figures(asking: Asking, done: Done) -> dict[str, Any]:
    tokens = len(done.tokens)
    figures = {
        "number": done.index,
        "tokens": tokens,
        "rounds": done.rounds,
        # But for the first token, which is the prefill's.
        "tokens_a_round": round((tokens - 1) / max(done.rounds, 1), 4),
        "seconds": round(done.seconds, 4),
        "waited": round(done.waited, 4),
        "digest": done.digest,
    }
    if asking.details:
        figures |= {"codes": done.tokens.tolist(), "round_of_token": done.round_of_token.tolist()}
    return figures


def _usage(made: Sequence[Done]) -> dict[str, Any]:
    """Tokens of the pictures; those of prompts are not counted."""
    tokens = sum(len(done.tokens) for done in made)
    return {
        "input_tokens": 0,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
        "output_tokens": tokens,
        "total_tokens": tokens,
    }


def _text(png: bytes) -> str:
    return base64.b64encode(png).decode("ascii")
