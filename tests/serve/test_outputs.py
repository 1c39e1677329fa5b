"""What becomes of pictures: sizes, formats, addresses; edits; pages on other sites; the log."""

import asyncio
import base64
import io
import json
import time
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from starlette.requests import Request
from starlette.testclient import TestClient

from lantern_jax.apps.serve import linked_pictures
from lantern_jax.apps.serve.access import Access
from lantern_jax.apps.serve.application import application
from lantern_jax.apps.serve.forms import MOST_FIELDS, read_form, read_start
from lantern_jax.apps.serve.linked_pictures import LinkedPictures
from lantern_jax.apps.serve.picture_request import FIELDS
from lantern_jax.pictures.images import fitted
from tests.serve.running import LIMITS, PATH
from tests.tiny_checkpoint import GRID, SIDE

EDITS = "/v1/images/edits"
PLAIN = {"method": "ar", "seed": 7}
ELSEWHERE = "https://page.example"


def opened(entry: dict) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(entry["b64_json"])))


@pytest.fixture(scope="module")
def guarded(server):
    """A server that answers another site's page and has a token; it shares the other server's programs."""
    access = Access.of("0.0.0.0", "secret", origins=[ELSEWHERE])
    app = application(
        server.library(), "pictures", access, limits=replace(LIMITS, form_bytes=65536), warm_up=False
    )
    headers = {"Authorization": "Bearer secret"}
    with TestClient(app, base_url="http://pictures.example", headers=headers) as client:
        yield client


def test_an_unsupported_size_is_noted(server):
    answer = server.ask(size="1024x1536", output_format="webp", output_compression=30, **PLAIN).json()
    picture = opened(answer["data"][0])
    assert answer["size"] == f"{SIDE}x{SIDE}" and (picture.format, picture.size) == ("WEBP", (SIDE, SIDE))
    assert answer["lantern"]["notes"] == [
        f"size 1024x1536 is not drawn by this model: the pictures have {SIDE}x{SIDE}"
    ]


def test_an_answer_links_to_pictures_that_are_kept_for_an_hour(guarded, monkeypatch):
    """Anyone who knows their names may fetch them for an hour, without the token."""
    asked = {"prompt": "a lake", "response_format": "url", "output_format": "webp", **PLAIN}
    entry = guarded.post(PATH, json=asked, headers={"X-Forwarded-Proto": "https"}).json()["data"][0]
    assert "b64_json" not in entry and entry["url"].startswith("https://pictures.example/pictures/")
    path = entry["url"].removeprefix("https://pictures.example")
    nobody = {"Authorization": ""}
    found = guarded.get(path, headers=nobody)
    assert found.status_code == 200 and found.headers["content-type"] == "image/webp"
    assert Image.open(io.BytesIO(found.content)).size == (SIDE, SIDE)
    assert guarded.get("/pictures/other.png", headers=nobody).status_code == 404
    now = time.monotonic()
    monkeypatch.setattr(linked_pictures.time, "monotonic", lambda: now + 3590)
    assert guarded.get(path, headers=nobody).status_code == 200
    monkeypatch.setattr(linked_pictures.time, "monotonic", lambda: now + 3610)
    gone = guarded.get(path, headers=nobody)
    assert gone.status_code == 404 and "kept for 3600 s" in gone.json()["error"]["message"]


def test_of_too_many_files_the_newest_are_kept():
    files = LinkedPictures(most=10)
    first, second = files.keep(bytes(6), "png"), files.keep(bytes(4), "jpeg")
    assert files.find(first) == (bytes(6), "image/png")
    third = files.keep(bytes(11), "png")
    assert files.find(first) is files.find(second) is None and files.find(third) is not None


def png(picture: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


def mask(kept_rows: int, side: int = 40, width: int | None = None) -> bytes:
    clear = np.zeros((side, width or side, 4), np.uint8)
    clear[: kept_rows * side // GRID, :, 3] = 255
    return png(clear)


def test_an_edit_continues_below_the_masks_line(server):
    """It has the tokens that the library gives for the same picture, of which the mask keeps whole rows."""
    picture = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)
    library, data = server.library(), {"prompt": "a lake", "seed": "7", "method": "ar"}
    clear = np.where(np.arange(40)[:, None] < 10, np.full((40, 40), 255, np.uint8), np.uint8(0))
    for kept_rows, files in (
        (3, {"image": png(picture), "mask": mask(3, width=60)}), (GRID // 2, {"image[]": png(picture)}),
        (1, {"image": png(np.dstack([picture[:, :40], clear]))}),
    ):  # fmt: skip
        answer = server.client.post(EDITS, data=data | {"details": "true"}, files=files)
        assert answer.status_code == 200, answer.text
        start = Image.open(io.BytesIO(next(iter(files.values())))).convert("RGB")
        made = library.generate("a lake", seed=7, method="ar", start=start, keep_rows=kept_rows)
        (entry,) = answer.json()["data"]
        assert entry["lantern"]["codes"] == made.tokens[0].tolist()
        assert json.loads(opened(entry).text["settings"])["keep_rows"] == kept_rows
    data["stream"] = "true"
    with server.client.stream("POST", EDITS, data=data, files={"image": png(picture)}) as response:
        assert b"event: image_edit.completed" in response.read()


def test_a_waiting_picture_is_kept_as_the_model_takes_it():
    """Upright, and no larger, however many pixels were sent."""
    sent = Image.fromarray(np.random.default_rng(0).integers(0, 255, (400, 600, 3), np.uint8))
    turned, buffer = sent.getexif(), io.BytesIO()
    turned[274] = 6
    sent.save(buffer, "PNG", exif=turned)
    picture, kept_rows = read_start({"image": buffer.getvalue()}, GRID, f"{SIDE}x{SIDE}")
    assert picture.size == (SIDE, SIDE) and kept_rows is None
    np.testing.assert_array_equal(np.asarray(picture), fitted(Image.open(buffer), SIDE, SIDE))


LAKE = {"prompt": "a lake"}
GOOD = png(np.zeros((40, 40, 3), np.uint8))
COLUMNS = np.dstack([np.zeros((40, 40, 3), np.uint8), np.tile(6 * np.arange(40, dtype=np.uint8), (40, 1))])
PART = b'--x\r\nContent-Disposition: form-data; name="n"\r\n\r\n1\r\n'
WRONG = {
    "no picture": (LAKE, {"mask": mask(2)}, "send it as the file image"),
    "no pixels": (LAKE, {"image": b"GIF89a nothing"}, "cannot be read (none of PNG, JPEG, WEBP, GIF, BMP)"),
    "pixels": (LAKE, {"image": png(np.zeros((4097, 4096), np.uint8))}, "4096x4097 pixels, more than 16777216"),
    "columns": (LAKE, {"image": GOOD, "mask": png(COLUMNS)}, "not of whole rows"),
    "below": (LAKE, {"image": GOOD, "mask": png(np.flipud(np.asarray(Image.open(io.BytesIO(mask(2))))))}, "whole rows"),
    "opaque": (LAKE, {"image": GOOD, "mask": GOOD}, "the mask hides nothing"),
    "none": (LAKE, {"image": GOOD, "mask": mask(0)}, "keeps 0 of 4 rows"),
    "another size": (LAKE, {"image": GOOD, "mask": mask(2, 20)}, "20x20, the picture 40x40"),
    "twice": ({**LAKE, "keep_rows": "2"}, {"image": GOOD, "mask": mask(2)}, "give each once"),
    "no number": ({**LAKE, "n": "two"}, {"image": GOOD}, "the form cannot be read (n is not JSON"),
    "unknown": ({**LAKE, "strength": "1"}, {"image": GOOD}, "unknown field 'strength'"),
    "no prompt": ({}, {"image": GOOD}, "prompt"),
}  # fmt: skip


def test_wrong_edits_are_refused(server):
    for name, (data, files, words) in WRONG.items():
        answer = server.client.post(EDITS, data=data, files=files)
        assert answer.status_code == 400 and words in answer.json()["error"]["message"], (name, answer.text)


def test_bodies_that_are_not_forms_are_refused(guarded):
    form = "multipart/form-data; boundary=x"
    for body, kind, status in (
        (b"{}", "application/json", 400), (b"", "multipart/form-data", 400), (b"", form, 400),
        (PART * (MOST_FIELDS + 1) + b"--x--", form, 400), (b"--x\r\nno: name\r\n\r\n1\r\n--x--", form, 400),
        (bytes(70000), form, 413),
    ):  # fmt: skip
        answer = guarded.post(EDITS, content=body, headers={"Content-Type": kind})
        assert answer.status_code == status and "\n" not in answer.json()["error"]["message"]


def test_a_form_has_the_same_fields_as_json():
    given = {"n": "2", "stream": "true", "prompt": "207", "temperature": "0.5", "rule": "near:tau=1"}
    head = '--x\r\nContent-Disposition: form-data; name="'
    body = "".join([*(f'{head}{name}"\r\n\r\n{value}\r\n' for name, value in given.items()), "--x--\r\n"])
    scope = {"type": "http", "headers": [(b"content-type", b'Multipart/Form-Data;boundary="x"')]}

    async def receive() -> dict:
        return {"type": "http.request", "body": body.encode()}

    fields, _ = asyncio.run(read_form(Request(scope, receive), 16384))
    assert fields == {**given, "n": 2, "stream": True, "temperature": 0.5}


def test_pages_of_allowed_origins_may_ask(guarded):
    """The browser's preflight request carries no token; the answer tells it who may read."""
    asked = {"Origin": ELSEWHERE, "Access-Control-Request-Method": "POST"}
    before = guarded.options(PATH, headers={**asked, "Authorization": ""})
    assert before.status_code == 200 and "POST" in before.headers["access-control-allow-methods"]
    answer = guarded.post(PATH, json={"prompt": "a lake", **PLAIN}, headers={"Origin": ELSEWHERE})
    refused = guarded.get("/v1/models", headers={"Origin": ELSEWHERE, "Authorization": ""})
    assert (answer.status_code, refused.status_code) == (200, 401)
    for one in (before, answer, refused):
        assert one.headers["access-control-allow-origin"] == ELSEWHERE and "Origin" in one.headers["vary"]
    other = {**asked, "Origin": "https://other.example"}
    before, answer = guarded.options(PATH, headers=other), guarded.post(PATH, json={}, headers=other)
    assert (before.status_code, answer.status_code) == (400, 403)
    assert "--allowed-origin" in answer.json()["error"]["message"]
    for one in (before, answer):
        assert "access-control-allow-origin" not in one.headers


def test_the_description_has_every_field_and_path(guarded):
    told = guarded.get("/openapi.json", headers={"Authorization": ""}).json()
    (schema,) = told["paths"]["/v1/images/generations"]["post"]["requestBody"]["content"].values()
    taken = set(schema["schema"]["properties"])
    (form,) = told["paths"]["/v1/images/edits"]["post"]["requestBody"]["content"].values()
    assert taken == set(FIELDS) and set(form["schema"]["properties"]) == taken - {"start"} | {"image", "mask"}
    assert {route.path for route in guarded.app.routes} - {"/", "/openapi.json"} == set(told["paths"])


def test_requests_are_logged_without_prompts(guarded, caplog):
    caplog.set_level("INFO", "lantern_jax")
    guarded.post(PATH, json={"prompt": "a lake", "n": 2, **PLAIN})
    guarded.get("/nowhere%1b%5B2J")
    guarded.get("/health")
    picture, nowhere = caplog.messages
    assert picture.startswith(f"POST {PATH} 200 in ") and "lake" not in picture
    assert picture.endswith("pictures 2, seed 7, stream False")
    assert "404" in nowhere and "\x1b" not in nowhere
