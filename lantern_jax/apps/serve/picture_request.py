"""Requests for pictures: the body of OpenAI's image endpoint, with the options of decoding beside its fields."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from lantern_jax.apps.serve.limits import Limits, Refused
from lantern_jax.apps.serve.picture_output import FORMATS, Output, read_output
from lantern_jax.decoding.fields import MOST_INT, MOST_SEED, Allowed, Names, Range, Switch
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import parse_json
from lantern_jax.settings.settings import NUMBERS, PARTS, SAMPLING, instead_of


@dataclass(frozen=True)
class Text(Allowed):
    """Text, or a whole number if the field may hold one instead."""

    words: str = "text"
    or_number: bool = False

    def check(self, name: str, value: Any) -> str | int:
        if isinstance(value, str) or (self.or_number and type(value) is int):
            return value
        raise errors.invalid(name, value, self.words)


@dataclass(frozen=True)
class Codes(Allowed):
    """A picture's codes; the pipeline checks their number, and that the model has them."""

    words: str = "a picture's codes, as an answer with details has them"

    def check(self, name: str, value: Any) -> tuple[int, ...]:
        if isinstance(value, list) and all(type(code) is int and 0 <= code <= MOST_INT for code in value):
            return tuple(value)
        raise errors.invalid(name, value, self.words)


@dataclass(frozen=True)
class MethodText(Text):
    """A method or a part of one as text, in which a tree is a name or its paths."""

    words: str = "text such as led:nodes=25"

    def check(self, name: str, value: Any) -> str:
        if ".json" in super().check(name, value):
            raise LanternError(f"{name}: files are not read here: write the tree's paths, 0.0+1")
        return value


# Fields that say how to decode, as text.
METHOD = ("method", *PARTS)
# Field -> what it may hold. The last ones are of OpenAI's clients, and change nothing here.
FIELDS: Mapping[str, Allowed] = {
    "prompt": Text("text, or a class number", or_number=True),
    "negative_prompt": Text(),
    "n": Range(int, 1),
    "seed": Range(int, high=MOST_SEED),
    "model": Text(),
    "size": Text(),
    "output_format": Names(FORMATS),
    "output_compression": Range(int, 0, 100),
    "response_format": Names(("b64_json", "url")),
    "stream": Switch(),
    "partial_images": Range(int, 0, 3),
    "details": Switch(),
    "start": Codes(),
    "keep_rows": Range(int, 1),
    **{name: MethodText() for name in METHOD},
    **{name: NUMBERS[name].metadata["allowed"] for name in SAMPLING},
    "background": Names(("auto", "opaque")),
    "input_fidelity": Names(("low", "high")),
    "moderation": Names(("auto", "low")),
    "quality": Names(("auto", "standard", "hd", "low", "medium", "high")),
    "style": Names(("vivid", "natural")),
    "user": Text(),
}


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
        negative_prompt: words that guidance leads away from, or none.
        output: what becomes of the pictures.
        notes: lines for people on what is not done as requested.
    """

    prompt: str | int
    num: int = 1
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    partial_images: int = 0
    details: bool = False
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
    picture: Image.Image | None = None,
) -> PictureRequest:
    """Reads the fields of a request to a server of ``model``, whose pictures have this ``size``.

    Args:
        picture: a form's picture to continue.

    Raises:
        Refused: a request that is not served.
    """
    given = {name: _checked(name, value) for name, value in fields.items() if value is not None}
    if "prompt" not in given:
        raise Refused(400, "prompt is missing: say what to draw", "prompt")
    for name in ("prompt", "negative_prompt"):
        if len(str(given.get(name, ""))) > limits.prompt_letters:
            raise Refused(400, f"the {name} is too long: give at most {limits.prompt_letters} letters", name)
    if given.get("model", model) != model:
        message = f"model {errors.quoted(given['model'])} is not served here: give {model!r}, or leave it out"
        raise Refused(404, message, "model", "model_not_found")
    if given.get("n", 1) > limits.pictures:
        raise Refused(
            400, f"n {given['n']} is not valid: give a whole number from 1 to {limits.pictures}", "n"
        )
    output, notes = read_output(given, size)
    given["start"] = given.get("start") if picture is None else picture
    # Without a seed every request gives other pictures, as at OpenAI's endpoint.
    given.setdefault("seed", secrets.randbelow(2**32))
    own = {name: value for name, value in given.items() if name in PictureRequest.__annotations__}
    options = {name: given[name] for name in (*METHOD, *SAMPLING) if name in given}
    return PictureRequest(**own, num=given.get("n", 1), options=options, output=output, notes=notes)


def read_body(content: bytes) -> dict[str, Any]:
    """Returns the fields of a body in JSON. Raises Refused for anything else."""
    try:
        fields = parse_json(content, "the body")
    except LanternError as error:
        raise Refused(400, str(error).replace("give another file", "give an object with a prompt")) from None
    if not isinstance(fields, dict):
        raise Refused(400, "the body is JSON of another kind: give an object with a prompt")
    return fields


def _checked(name: str, value: Any) -> Any:
    """Returns a field's value; raises Refused for an unknown field, or a value that it may not hold."""
    shown = errors.printable(name[:60])
    if name not in FIELDS:
        advice = instead_of(name) or f"{errors.nearest(shown, FIELDS)}choose from {', '.join(FIELDS)}"
        raise Refused(400, f"unknown field {errors.quoted(name)}: {advice}", shown)
    try:
        return FIELDS[name].check(name, value)
    except LanternError as error:
        raise Refused(422 if name in METHOD else 400, str(error), name) from None
