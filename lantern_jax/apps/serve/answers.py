"""The server's answers: OpenAI's shapes for pictures, events and models, with our figures under ``lantern``."""

import base64
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image
from starlette.responses import Response

from lantern_jax.apps.serve.limits import Refused
from lantern_jax.apps.serve.picture_output import Output
from lantern_jax.apps.serve.picture_request import PictureRequest
from lantern_jax.apps.serve.ticket import Done, Progress, Queued, Ticket
from lantern_jax.checkpoints.checkpoint import picture_size
from lantern_jax.decoding.choices import meanings
from lantern_jax.decoding.methods import METHODS
from lantern_jax.io.errors import LanternError
from lantern_jax.models.sizes import shape_of
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings.settings import NUMBERS, Settings

# Any kind of model takes some of these.
_EXAMPLES = (
    "green hills at noon with a river under clouds", "a forest with a waterfall in autumn",
    "a town by the sea with a rainbow", "mountains by a lake at night with an aurora",
    "golden retriever", "lakeside", "volcano", "tabby cat", "207", "0",
)  # fmt: skip
_SHOWN = 4


def encode_json(value: Any) -> bytes:
    """Returns a value as JSON in ASCII, which any text can be sent as."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Returns an answer in JSON."""
    return Response(encode_json(value), status, headers, "application/json")


def refusal(refused: Refused) -> Response:
    """Returns the answer to a request that is not served."""
    return json_answer(refused.to_json(), refused.status, refused.headers)


def encode_event(value: dict[str, Any]) -> bytes:
    """Returns a server-sent event of the value's own type."""
    return b"event: %s\ndata: %s\n\n" % (value["type"].encode("ascii"), encode_json(value))


def whole_answer(
    ticket: Ticket, made: Sequence[Done], lead_to: Callable[[bytes, str], str]
) -> dict[str, Any]:
    """Returns the answer with all pictures of a request; ``lead_to`` keeps a file and returns its address."""
    output = ticket.request.output

    def linked(file: bytes) -> dict[str, str]:
        return {"url": lead_to(file, output.format)} if output.as_url else {"b64_json": _text(file)}

    data = [{**linked(done.file), "lantern": _figures(ticket.request, done)} for done in made]
    shown = {"data": data, "usage": _usage(made), "lantern": _settings(ticket)}
    return {"created": int(time.time()), **_common(output), **shown}


def event_of(ticket: Ticket, now: Queued | Progress | Done) -> dict[str, Any]:
    """Returns the event of a place in the queue, of an unfinished picture, or of a finished one."""
    request = ticket.request
    if isinstance(now, Queued):
        return {"type": "lantern.queued", "ahead": now.ahead, "lantern": _settings(ticket)}
    kind = "image_edit" if isinstance(request.start, Image.Image) else "image_generation"
    common = {"created_at": int(time.time()), **_common(request.output)}
    if isinstance(now, Done):
        return {
            "type": f"{kind}.completed",
            "index": now.index,
            "b64_json": _text(now.file),
            **common,
            "usage": _usage([now]),
            "lantern": {**_settings(ticket), **_figures(request, now)},
        }
    figures = {
        "tokens": now.tokens,
        "total": now.total,
        "rounds": now.rounds,
        "seconds": round(now.seconds, 4),
    }
    event = {"type": "lantern.progress", "index": now.index, "lantern": figures}
    if now.partial is not None:
        event |= {"type": f"{kind}.partial_image", "partial_image_index": now.partial, **common}
    return event if now.file is None else {**event, "b64_json": _text(now.file)}


def _common(output: Output) -> dict[str, str]:
    return {"size": output.size, "quality": "high", "background": "opaque", "output_format": output.format}


def _settings(ticket: Ticket) -> dict[str, Any]:
    """Returns the seed, the settings, and notes on parts of the request that change nothing or are not done."""
    request = ticket.request
    found: dict[str, Any] = {"seed": request.seed, "settings": ticket.settings.to_json()}
    return found | ({"notes": list(request.notes)} if request.notes else {})


def _figures(request: PictureRequest, done: Done) -> dict[str, Any]:
    tokens = len(done.tokens)
    figures = {
        "number": done.index,
        "tokens": tokens,
        "rounds": done.rounds,
        # The first token is the prefill's; given tokens belong to no round either.
        "tokens_a_round": round(np.count_nonzero(done.round_of_token) / max(done.rounds, 1), 4),
        "seconds": round(done.seconds, 4),
        "waited": round(done.waited, 4),
        "digest": done.digest,
    }
    if request.details:
        figures |= {"codes": done.tokens.tolist(), "round_of_token": done.round_of_token.tolist()}
    return figures


def _usage(made: Sequence[Done]) -> dict[str, Any]:
    """Returns the tokens of the pictures; prompts are not counted."""
    tokens = sum(len(done.tokens) for done in made)
    return {
        "input_tokens": 0,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
        "output_tokens": tokens,
        "total_tokens": tokens,
    }


def _text(file: bytes) -> str:
    return base64.b64encode(file).decode("ascii")


def _check_prompt(pipeline: Pipeline, prompt: str, **call: Any) -> None:
    """Raises LanternError for a prompt that the model does not take, or of which it would ignore a word."""
    if pipeline.checkpoint.vocabulary is not None:
        pipeline.checkpoint.vocabulary.parse(prompt)
    pipeline.check(prompt, **call)


def _works(check: Callable[..., Any], *given: Any, **options: Any) -> bool:
    try:
        check(*given, **options)
    except LanternError:
        return False
    return True


def model_entry(pipeline: Pipeline, name: str) -> dict[str, Any]:
    """Returns the model as in OpenAI's list; under ``lantern`` are its pictures, words, methods and numbers.

    Raises:
        LanternError: a model that takes no prompts or draws no pictures.
    """
    pipeline.check_draws()
    checkpoint, vocabulary = pipeline.checkpoint, pipeline.checkpoint.vocabulary
    (width, height), (rows, columns) = picture_size(checkpoint), shape_of(checkpoint.target_config)
    defaults = pipeline.settings({})
    able = {}
    for method, named in METHODS.items():
        if _works(pipeline.settings, {"method": method}):  # The model can be decoded with it.
            rule = pipeline.settings({"method": method}).method.texts["rule"]
            able[method] = {"help": named.help, "rule": rule}
    numbers = {}
    for number, about in meanings(Settings).items():
        allowed, default = NUMBERS[number].metadata["allowed"], getattr(defaults, number)
        numbers[number] = {"help": about, "range": allowed.words, "note": allowed.note, "default": default}
    del numbers["batch"]  # The server's to choose.
    words = {} if vocabulary is None else vocabulary.grouped()
    known = itertools.chain(_EXAMPLES, *words.values())
    examples = list(itertools.islice((one for one in known if _works(_check_prompt, pipeline, one)), _SHOWN))
    if not examples:
        _check_prompt(pipeline, _EXAMPLES[0])  # Says why.
    described = {
        **{"width": width, "height": height, "rows": rows, "columns": columns, "tokens": rows * columns},
        "examples": examples,
        "negative_prompt": _works(_check_prompt, pipeline, examples[0], negative_prompt=examples[0]),
        "words": words,
        "impossible": [] if vocabulary is None else vocabulary.impossible,
        "methods": able,
        "numbers": numbers,
    }
    return {"id": name, "object": "model", "created": 0, "owned_by": "lantern_jax", "lantern": described}
