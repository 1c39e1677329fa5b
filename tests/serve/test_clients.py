"""OpenAI's own client library, if it is installed: 25 calls to a server, as its users' programs make them."""

import base64
import io

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.serve.running import running
from tests.tiny_checkpoint import GRID, SIDE, TOKENS, pipeline_on

openai = pytest.importorskip("openai")
EXTRA = {"seed": 7, "method": "ar"}
LAKE = {"model": "tiny", "prompt": "a lake", "extra_body": EXTRA}


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def pictures(answer) -> list[Image.Image]:
    return [Image.open(io.BytesIO(base64.b64decode(entry.b64_json))) for entry in answer.data]


def test_models(client):
    """Calls 1 to 3."""
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "lantern_jax"
    with pytest.raises(openai.NotFoundError, match="this server has tiny"):
        client.models.retrieve("gpt-image-1")


@pytest.mark.parametrize(("asked", "form", "count"), [
    ({}, "PNG", 1), ({"n": 2}, "PNG", 2), ({"size": "auto"}, "PNG", 1), ({"size": f"{SIDE}x{SIDE}"}, "PNG", 1),
    ({"size": "1024x1024", "quality": "hd", "style": "vivid"}, "PNG", 1),
    ({"output_format": "jpeg"}, "JPEG", 1), ({"output_format": "webp", "output_compression": 60}, "WEBP", 1),
    ({"response_format": "b64_json", "user": "me", "background": "opaque", "moderation": "low"}, "PNG", 1),
])  # fmt: skip
def test_pictures(server, client, asked, form, count):
    """Calls 4 to 11: the pictures are those of a plain request to the endpoint."""
    made = client.images.generate(**LAKE, **asked)
    images = pictures(made)
    assert [(image.format, image.size) for image in images] == [(form, (SIDE, SIDE))] * count
    assert made.usage.output_tokens == count * TOKENS
    assert (made.output_format, made.size) == (form.lower(), f"{SIDE}x{SIDE}")
    expected = server.ask(n=count, **EXTRA).json()["data"]
    if form == "PNG":
        assert [entry.b64_json for entry in made.data] == [entry["b64_json"] for entry in expected]


def test_an_address(client):
    """Call 12."""
    made = client.images.generate(**LAKE, response_format="url")
    assert made.data[0].b64_json is None
    found = httpx.get(made.data[0].url)
    assert found.status_code == 200 and Image.open(io.BytesIO(found.content)).size == (SIDE, SIDE)


@pytest.mark.parametrize(("partial", "form"), [(0, "PNG"), (1, "PNG"), (3, "JPEG")])
def test_a_stream(server, client, gate, partial, form):
    """Calls 13 to 15."""
    gate.let(1000)
    asked = {**LAKE, "stream": True, "partial_images": partial, "output_format": form.lower()}
    *events, end = client.images.generate(**asked)
    assert [event.type for event in events] == ["image_generation.partial_image"] * partial
    assert [event.partial_image_index for event in events] == list(range(partial))
    assert end.type == "image_generation.completed" and end.usage.output_tokens == TOKENS
    for event in (*events, end):
        assert Image.open(io.BytesIO(base64.b64decode(event.b64_json))).format == form


def png(pixels: np.ndarray) -> tuple[str, bytes, str]:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return "picture.png", buffer.getvalue(), "image/png"


def test_edits(client):
    """Calls 16 to 20: the part above the mask's line stays."""
    pixels = np.random.default_rng(0).integers(0, 255, (SIDE, SIDE, 3), np.uint8)
    mask = np.zeros((SIDE, SIDE, 4), np.uint8)
    mask[: 3 * SIDE // GRID, :, 3] = 255
    details = {**LAKE, "extra_body": {**EXTRA, "details": True}}
    whole = client.images.edit(image=png(pixels), **details)
    masked = client.images.edit(image=png(pixels), mask=png(mask), n=2, output_format="webp", **details)
    listed = client.images.edit(image=[png(pixels)], input_fidelity="high", **details)
    assert len(masked.data) == 2 and masked.output_format == "webp"
    codes = [np.reshape(made.data[0].lantern["codes"], (GRID, GRID)) for made in (whole, masked, listed)]
    np.testing.assert_array_equal(codes[0], codes[2])
    np.testing.assert_array_equal(codes[0][: GRID // 2], codes[1][: GRID // 2])
    events = list(client.images.edit(image=png(pixels), stream=True, **LAKE))
    assert [event.type for event in events] == ["image_edit.completed"]
    with pytest.raises(openai.BadRequestError, match="not of whole rows"):
        client.images.edit(image=png(pixels), mask=png(mask.swapaxes(0, 1)), **LAKE)


@pytest.mark.parametrize(("asked", "error", "words", "param"), [
    ({"prompt": "a lake", "model": "gpt-image-1"}, openai.NotFoundError, "not served here", "model"),
    ({"prompt": "a lake", "n": 11}, openai.BadRequestError, "from 1 to 10", "n"),
    ({"prompt": "a lake", "size": "large"}, openai.BadRequestError, "WIDTHxHEIGHT", "size"),
    ({"prompt": "a lake", "extra_body": {"methd": "ar"}}, openai.BadRequestError, "unknown field 'methd'", "methd"),
])  # fmt: skip
def test_errors_are_the_librarys_own(client, asked, error, words, param):
    """Calls 21 to 24."""
    with pytest.raises(error, match=words) as caught:
        client.images.generate(**asked)
    assert caught.value.type == "invalid_request_error" and caught.value.param == param


def test_a_full_queue_is_a_rate_limit_error(server):
    """Call 25: what the library's own retries rely on."""
    pipeline = pipeline_on(1)
    pipeline.engine.programs = server.engine.programs
    with (
        running(pipeline, queue=1) as small,
        openai.OpenAI(base_url=f"{small.url}/v1", api_key="x", max_retries=0) as client,
        pytest.raises(openai.RateLimitError, match="ask again later") as caught,
    ):
        client.images.generate(**LAKE, n=2)
    assert caught.value.code == "queue_full" and int(caught.value.response.headers["retry-after"]) >= 1
