"""Requests for pictures: the body of OpenAI's image endpoint, with the options of decoding beside its fields."""

import json
import secrets
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from PIL import Image

from lantern_jax.apps.serve.limits import Limits, Refused
from lantern_jax.apps.serve.outputs import FORMATS, Output, read_output
from lantern_jax.decoding.fields import ByPlatform, Range, check_seed
from lantern_jax.decoding.methods import AUTO, TREES_METHOD, Method
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_text
from lantern_jax.settings.settings import NUMBERS, OPTIONS, PARTS, instead_of

# Fields of OpenAI's clients that change nothing here, with their allowed values; None for any text.
HARMLESS: Mapping[str, tuple[Any, ...] | None] = {
    "background": ("auto", "opaque"),
    "input_fidelity": ("low", "high"),
    "moderation": ("auto", "low"),
    "quality": ("auto", "standard", "hd", "low", "medium", "high"),
    "style": ("vivid", "natural"),
    "user": None,
}
OWN = (
    "details", "keep_rows", "model", "n", "negative_prompt", "output_compression", "output_format", "partial_images",
    "prompt", "response_format", "seed", "size", "start", "stream",
)  # fmt: skip
# Fields that say how to decode, as text.
METHOD = ("method", *PARTS)
PARTIAL_IMAGES = 3
_WORDS = {**HARMLESS, "output_format": FORMATS, "response_format": ("b64_json", "url")}
# The largest values of fields that decide how much memory a round takes.
_MOST = {
    "nodes": 64, "depth": 16, "frontier": 16, "children": 16, "window": 64, "branches": 8, "levels": 4, "refine": 8,
    "samples": 16,
}  # fmt: skip
_quoted = partial(errors.quoted, most=60)
# No field takes a longer whole number.
_DIGITS = 40


@dataclass(frozen=True)
class PictureRequest:
    """A request for pictures.

    Attributes:
        prompt: words, or a class number.
        num: pictures; they have the numbers 0 to num - 1 of the seed.
        seed: 0 to 2**32 - 1.
        options: those of decoding that were given, by name.
        stream: whether to send events while the pictures are made.
        partial_images: how many unfinished pictures a stream shows of each, 0 to 3.
        details: whether answers hold tokens and rounds too, and a stream reports progress several times per second.
        start: a picture of the model's size, or the codes of one, whose first rows stay; or None.
        keep_rows: how many of them; None for half.
        negative_prompt: words that guidance leads away from; None for none.
        output: what becomes of the pictures.
        notes: lines for people on what is not done as requested.
    """

    prompt: str | int
    num: int
    seed: int
    options: Mapping[str, Any]
    stream: bool
    partial_images: int
    details: bool
    start: tuple[int, ...] | Image.Image | None = None
    keep_rows: int | None = None
    negative_prompt: str | None = None
    output: Output = field(default_factory=lambda: Output("auto"))
    notes: tuple[str, ...] = ()


def read_request(
    fields: Mapping[str, Any],
    limits: Limits,
    model: str,
    size: str,
    scales: bool,
    picture: Image.Image | None = None,
) -> PictureRequest:
    """Reads the fields of a request to a server of ``model``, whose pictures have this ``size``.

    Args:
        scales: whether pictures are scaled to the size that is asked for.
        picture: a form's picture to continue.

    Raises:
        Refused: a request that is not served.
    """
    fields = {name: value for name, value in fields.items() if value is not None}
    for name, value in fields.items():
        _check_field(name, value)
    prompt, negative = fields.get("prompt"), fields.get("negative_prompt") or None
    _check_prompt("prompt", prompt, limits.prompt_letters)
    if negative is not None:
        _check_prompt("negative_prompt", negative, limits.prompt_letters)
    if fields.get("model", model) != model:
        message = f"model {_quoted(fields['model'])} is not served here: give {model!r}, or leave it out"
        raise Refused(404, message, "model", "model_not_found")
    if "output_compression" in fields:
        _number("output_compression", fields["output_compression"], 0, 100)
    output, notes = read_output(fields, size, scales)
    seed = fields.get("seed")
    return PictureRequest(
        prompt=prompt,
        num=_number("n", fields.get("n", 1), 1, limits.pictures),
        # Without a seed every request gives other pictures, as at OpenAI's endpoint.
        seed=secrets.randbelow(2**32) if seed is None else _checked(check_seed, "seed", seed),
        options=_options(fields),
        stream=_flag(fields, "stream"),
        partial_images=_number("partial_images", fields.get("partial_images", 0), 0, PARTIAL_IMAGES),
        details=_flag(fields, "details"),
        start=_codes(fields.get("start")) if picture is None else picture,
        keep_rows=fields.get("keep_rows"),
        negative_prompt=negative,
        output=output,
        notes=notes,
    )


def decoded(content: bytes) -> dict[str, Any]:
    """Returns the fields of a body in JSON. Raises Refused for anything else."""

    def no_number(name: str) -> NoReturn:
        raise LanternError(f"{name} is no number of JSON")

    def whole(text: str) -> int | float:
        # More digits, which Python may refuse to read, are for the field's own check to refuse.
        return int(text) if len(text) <= _DIGITS else float(text)

    try:
        fields = json.loads(content.decode("utf-8"), parse_constant=no_number, parse_int=whole)
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)[:120]
        raise Refused(400, f"the body is not JSON ({why}): give an object with a prompt") from None
    if not isinstance(fields, dict):
        raise Refused(400, f"the body is JSON of another kind ({type(fields).__name__}): give an object")
    return fields


def _check_field(name: str, value: Any) -> None:
    """Raises Refused for an unknown field, or a value that asks for something that is not done."""
    if name in _WORDS:
        values = _WORDS[name]
        if not (isinstance(value, str) if values is None else value in values):
            wanted = "text" if values is None else f"one of {', '.join(values)}"
            raise Refused(400, f"{name} {_quoted(value)} is not served: give {wanted}, or leave it out", name)
    elif name not in OWN and name not in OPTIONS:
        advice = instead_of(name) or f"choose from {', '.join((*OWN, *OPTIONS))}"
        raise Refused(400, f"unknown field {_quoted(name)}: {advice}", errors.printable(name[:60]))


def _check_prompt(name: str, prompt: Any, letters: int) -> None:
    is_class = isinstance(prompt, int) and not isinstance(prompt, bool) and 0 <= prompt < 2**31
    if is_class and name == "prompt":
        return
    if not isinstance(prompt, str):
        raise Refused(400, f"{name} {_quoted(prompt)} is not text: say in words what to draw", name)
    if len(prompt) > letters:
        raise Refused(
            400, f"the {name} has {len(prompt)} letters: give at most {letters}", name, "prompt_too_long"
        )
    _checked(partial(check_text, what=name), name, prompt)
    if any(unicodedata.category(letter) == "Cc" and letter not in "\t\r\n" for letter in prompt):
        raise Refused(400, f"the {name} holds characters that cannot be shown: leave them out", name)


def _options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of decoding among the fields, each checked; the pipeline says which fit together."""
    options = {name: value for name, value in fields.items() if name in OPTIONS}
    if "batch" in options:
        raise Refused(400, "batch is the server's to choose: leave it out", "batch")
    for name in NUMBERS.keys() & options.keys():
        allowed = NUMBERS[name].metadata["allowed"]
        options[name] = _checked(partial(allowed.check, name), name, options[name])
    for name in METHOD:
        if name in options:
            _check_method(name, options[name])
    return options


def _check_method(name: str, text: Any) -> None:
    """Raises Refused for what is no text of a method or a part, or asks for a round that takes too much memory."""
    if not isinstance(text, str):
        raise Refused(422, f"{name} {_quoted(text)} is not text: give a name such as led:nodes=25", name)
    if ".json" in text:
        raise Refused(422, f"{name}: files are not read here: write the tree's paths, 0.0+1", name)
    if (name, text) == ("method", AUTO):
        return
    try:
        made = Method.of(text) if name == "method" else Method.of(TREES_METHOD, **{name: text})
    except LanternError as error:
        raise Refused(422, str(error), name) from None
    for part in vars(made).values():
        for what, most in _MOST.items():
            given = getattr(part, what, None)
            for value in given if isinstance(given, ByPlatform) else (given,):
                if isinstance(value, int) and value > most:
                    message = f"{what} {value} is more than this server takes: give at most {most}"
                    raise Refused(422, message, name)


def _codes(start: Any) -> tuple[int, ...] | None:
    """Returns the codes of a picture; the pipeline checks their number and that the model has them."""
    if start is None:
        return None
    whole = isinstance(start, list) and all(type(code) is int and 0 <= code < 2**31 for code in start)
    if not whole or not start:
        message = (
            f"start {_quoted(start)} is not a picture's codes: give those that an answer with details has"
        )
        raise Refused(400, message, "start")
    return tuple(start)


def _number(name: str, value: Any, least: int, most: int) -> int:
    return _checked(partial(Range(int, least, most).check, name), name, value)


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise Refused(400, f"{name} {_quoted(value)} is not valid: give true or false", name)
    return value


def _checked(check, name: str, value: Any) -> Any:
    try:
        return check(value)
    except ValueError as error:
        raise Refused(400, str(error), name) from None
