"""OpenAI's own client library, if it is installed: 25 calls to a server, as its users' programs make them."""

import base64
import io

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.serve.running import running
from tests.tiny_checkpoint import GRID, SIDE, TOKENS

EXTRA = {"seed": 7, "method": "ar"}
LAKE = {"model": "tiny", "prompt": "a lake", "extra_body": EXTRA}


@pytest.fixture(scope="module")
def openai():
    """Imports OpenAI's client late, since that takes a second of every process."""
    return pytest.importorskip("openai")


@pytest.fixture(scope="module")
def client(server, openai):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client, openai):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "lantern_jax"
    with pytest.raises(openai.NotFoundError, match="this server has tiny"):
        client.models.retrieve("gpt-image-1")


@pytest.mark.parametrize("asked", [
    {}, {"n": 2}, {"size": "auto"}, {"size": f"{SIDE}x{SIDE}"},
    {"size": "1024x1024", "quality": "hd", "style": "vivid"},
    {"output_format": "jpeg"}, {"output_format": "webp", "output_compression": 60},
    {"response_format": "b64_json", "user": "me", "background": "opaque", "moderation": "low"},
])  # fmt: skip
def test_pictures_are_those_of_a_plain_request(server, client, asked):
    made, count, form = (
        client.images.generate(**LAKE, **asked),
        asked.get("n", 1),
        asked.get("output_format", "png"),
    )
    images = [Image.open(io.BytesIO(base64.b64decode(entry.b64_json))) for entry in made.data]
    assert [(image.format, image.size) for image in images] == [(form.upper(), (SIDE, SIDE))] * count
    assert made.usage.output_tokens == count * TOKENS
    assert (made.output_format, made.size) == (form, f"{SIDE}x{SIDE}")
    if form == "png":
        expected = server.ask(n=count, **EXTRA).json()["data"]
        assert [entry.b64_json for entry in made.data] == [entry["b64_json"] for entry in expected]


def test_an_address(client):
    made = client.images.generate(**LAKE, response_format="url")
    assert made.data[0].b64_json is None
    assert Image.open(io.BytesIO(httpx.get(made.data[0].url).content)).size == (SIDE, SIDE)


@pytest.mark.parametrize(("partial", "form"), [(0, "PNG"), (1, "PNG"), (3, "JPEG")])
def test_a_stream(server, client, gate, partial, form):
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


def test_edits(client, openai):
    """The part above the mask's line stays."""
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
    ({"prompt": "a lake", "model": "gpt-image-1"}, "NotFoundError", "not served here", "model"),
    ({"prompt": "a lake", "n": 11}, "BadRequestError", "from 1 to 10", "n"),
    ({"prompt": "a lake", "size": "large"}, "BadRequestError", "WIDTHxHEIGHT", "size"),
    ({"prompt": "a lake", "extra_body": {"methd": "ar"}}, "BadRequestError", "unknown field 'methd'", "methd"),
])  # fmt: skip
def test_errors_are_the_librarys_own(client, openai, asked, error, words, param):
    with pytest.raises(getattr(openai, error), match=words) as caught:
        client.images.generate(**asked)
    assert caught.value.type == "invalid_request_error" and caught.value.param == param


def test_a_full_queue_is_a_rate_limit_error(server, openai):
    """What the library's own retries rely on."""
    with (
        running(server.library(), queue=1) as small,
        openai.OpenAI(base_url=f"{small.url}/v1", api_key="x", max_retries=0) as client,
        pytest.raises(openai.RateLimitError, match="ask again later") as caught,
    ):
        client.images.generate(**LAKE, n=2)
    assert caught.value.code == "queue_full" and int(caught.value.response.headers["retry-after"]) >= 1
