"""The endpoint's description at ``/openapi.json``, in OpenAPI 3.1, from the tables that requests are checked with."""

from typing import Any

import lantern_jax
from lantern_jax.apps.serve.outputs import FORMATS
from lantern_jax.apps.serve.requests import HARMLESS, METHOD, PARTIAL_IMAGES
from lantern_jax.decoding.choices import meanings
from lantern_jax.settings.settings import NUMBERS, SAMPLING, Settings

# Schemas of the endpoint's own fields, with a line each.
_WHOLE, _TEXT, _FLAG = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}
_FIELDS: dict[str, dict[str, Any]] = {
    "details": {**_FLAG, "description": "tell tokens and the round of every token"},
    "keep_rows": {**_WHOLE, "minimum": 1, "description": "how many rows of codes to keep of a picture to continue"},
    "model": {**_TEXT, "description": "the model that is served"},
    "n": {**_WHOLE, "minimum": 1, "default": 1, "description": "pictures"},
    "negative_prompt": {**_TEXT, "description": "what guidance leads away from"},
    "output_compression": {**_WHOLE, "minimum": 0, "maximum": 100, "description": "quality of jpeg and webp"},
    "output_format": {**_TEXT, "enum": list(FORMATS), "default": "png"},
    "partial_images": {**_WHOLE, "minimum": 0, "maximum": PARTIAL_IMAGES, "description": "unfinished pictures"},
    "prompt": {"type": ["string", "integer"], "description": "what to draw; a class number for models of classes"},
    "response_format": {**_TEXT, "enum": ["b64_json", "url"], "default": "b64_json"},
    "seed": {**_WHOLE, "minimum": 0, "maximum": 2**32 - 1, "description": "without it a new one every time"},
    "size": {**_TEXT, "default": "auto", "description": "WIDTHxHEIGHT, or auto for the model's own"},
    "start": {"type": "array", "items": _WHOLE, "description": "codes of a picture to go on with"},
    "stream": {**_FLAG, "default": False, "description": "send events while the pictures are made"},
}  # fmt: skip


def document(name: str) -> dict[str, Any]:
    """Returns the description of a server of the model ``name``."""
    fields = {
        name: {**_TEXT, "description": f"the {name}: its name, or name:field=value,field=value"} for name in METHOD
    }  # fmt: skip
    about = meanings(Settings)
    for number in SAMPLING:
        allowed = NUMBERS[number].metadata["allowed"]
        kind = "integer" if allowed.type is int else "number"
        fields[number] = {"type": kind, "description": f"{about[number]}: {allowed.words}"}
    fields |= {
        name: _TEXT | ({} if some is None else {"enum": list(some)}) for name, some in HARMLESS.items()
    }
    fields |= _FIELDS
    asked = {"type": "object", "required": ["prompt"], "additionalProperties": False, "properties": fields}
    file = {**_TEXT, "format": "binary"}
    # A form continues its picture rather than codes.
    shared = {name: one for name, one in fields.items() if name != "start"}
    form = {**asked, "required": ["prompt", "image"], "properties": {**shared, "image": file, "mask": file}}
    answer = {"description": "the pictures", "content": {"application/json": {}, "text/event-stream": {}}}
    refused = {"description": "an error in OpenAI's shape", "content": {"application/json": {}}}

    def post(summary: str, media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
        body = {"required": True, "content": {media_type: {"schema": schema}}}
        responses = {"200": answer, "default": refused}
        return {"post": {"summary": summary, "requestBody": body, "responses": responses}}

    def get(summary: str, *parameters: str) -> dict[str, Any]:
        named = [{"name": one, "in": "path", "required": True, "schema": _TEXT} for one in parameters]
        shown = {"summary": summary, "responses": {"200": {"description": summary}, "default": refused}}
        return {"get": shown | ({"parameters": named} if named else {})}

    return {
        "openapi": "3.1.0",
        "info": {"title": f"lantern serve: {name}", "version": lantern_jax.__version__},
        "paths": {
            "/v1/images/generations": post("draw pictures", "application/json", asked),
            "/v1/images/edits": post("go on with a picture", "multipart/form-data", form),
            "/v1/models": get("the model that is served"),
            "/v1/models/{name}": get("the model that is served", "name"),
            "/pictures/{name}": get("a picture that an answer led to", "name"),
            "/health": get("whether the server is warm"),
            "/metrics": get("counters as Prometheus reads them"),
        },
        # Needed if the server has a token.
        "security": [{"token": []}, {}],
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }
