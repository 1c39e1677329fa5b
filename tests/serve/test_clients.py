"""OpenAI's own client library, where it is installed."""

import base64
import io

import pytest
from PIL import Image

from tests.tiny_checkpoint import SIDE

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_pictures(server, client):
    asked = {"model": "tiny", "prompt": "a lake", "n": 2, "size": "auto"}
    made = client.images.generate(**asked, extra_body={"seed": 7, "method": "ar"})
    images = [Image.open(io.BytesIO(base64.b64decode(entry.b64_json))) for entry in made.data]
    assert [image.size for image in images] == [(SIDE, SIDE)] * 2
    assert made.usage.output_tokens == 32 and made.output_format == "png"
    expected = server.ask(seed=7, n=2, method="ar").json()["data"]
    assert [entry.b64_json for entry in made.data] == [entry["b64_json"] for entry in expected]


def test_a_stream(server, client, gate):
    gate.let(1000)
    asked = {"prompt": "a lake", "stream": True, "partial_images": 1}
    stream = client.images.generate(**asked, extra_body={"seed": 7, "method": "ar"})
    kinds = [(event.type, len(event.b64_json) > 100) for event in stream]
    assert kinds == [("image_generation.partial_image", True), ("image_generation.completed", True)]


def test_errors_are_its_own(client):
    with pytest.raises(openai.BadRequestError, match="unknown word 'octopus'") as caught:
        client.images.generate(prompt="an octopus")
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.images.generate(prompt="a lake", model="gpt-image-1")
    assert [model.id for model in client.models.list()] == ["tiny"]
