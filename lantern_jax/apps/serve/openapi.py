"""The endpoint's description at ``/openapi.json``, in OpenAPI 3.1, from the table that requests are checked with."""

import math
from typing import Any

import lantern_jax
from lantern_jax.apps.serve.picture_request import FIELDS, Codes, Text
from lantern_jax.decoding.fields import Allowed, Names, Range, Switch

_TEXT = {"type": "string"}


def schema(allowed: Allowed) -> dict[str, Any]:
    """Returns the JSON schema of what a field may hold."""
    match allowed:
        case Range(type=kind, low=low, high=high):
            bounds = {"minimum": low} | ({"maximum": high} if math.isfinite(high) else {})
            return {"type": "integer" if kind is int else "number", **bounds}
        case Names(names=names):
            return {**_TEXT, "enum": list(names)}
        case Switch():
            return {"type": "boolean"}
        case Codes():
            return {"type": "array", "items": {"type": "integer"}}
        case Text(or_number=True):
            return {"type": ["string", "integer"]}
    return _TEXT


def document(name: str) -> dict[str, Any]:
    """Returns the description of a server of the model ``name``."""
    fields = {name: {**schema(allowed), "description": allowed.words} for name, allowed in FIELDS.items()}
    asked = {"type": "object", "required": ["prompt"], "additionalProperties": False, "properties": fields}
    file = {**_TEXT, "format": "binary"}
    # A form continues its picture rather than codes.
    shared = {name: one for name, one in fields.items() if name != "start"}
    form = {**asked, "required": ["prompt", "image"], "properties": {**shared, "image": file, "mask": file}}
    answer = {"description": "the pictures", "content": {"application/json": {}, "text/event-stream": {}}}
    refused = {"description": "an error in OpenAI's shape", "content": {"application/json": {}}}

    def post(summary: str, media_type: str, body: dict[str, Any]) -> dict[str, Any]:
        content = {"required": True, "content": {media_type: {"schema": body}}}
        responses = {"200": answer, "default": refused}
        return {"post": {"summary": summary, "requestBody": content, "responses": responses}}

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
