"""The page in Chromium, where it and Playwright are installed."""

import io
import json
import os
import shutil

import pytest
from PIL import Image

from lantern_jax.pictures.images import tokens_digest

api = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(server, browser):
    context = browser.new_context(viewport={"width": 390, "height": 844}, accept_downloads=True)
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    elsewhere = lambda url: None if ours(url, server.url) else wrong.append(url)  # noqa: E731
    page.on("request", lambda request: elsewhere(request.url))
    page.goto(server.url)
    api.expect(page.locator("#model")).to_have_text("tiny")
    yield page
    context.close()
    assert [line for line in wrong if "400 (Bad Request)" not in line] == []


def ours(url: str, server: str) -> bool:
    return url.startswith((f"{server}/", "data:", "blob:"))


def paint(page, prompt: str = "a lake", seed: int = 5, method: str = "led") -> None:
    page.fill("#prompt", prompt)
    page.fill("#seed", str(seed))
    page.select_option("#method", method)
    page.click("#paint")


def test_a_picture_and_its_race(server, page):
    paint(page)
    api.expect(page.locator("#status")).to_have_text("Done.", timeout=30000)
    with page.expect_download() as download:
        page.click("text=Download PNG")
    with open(download.value.path(), "rb") as file:
        text = Image.open(io.BytesIO(file.read())).text
    library = server.library()
    guidance = json.loads(text["settings"])["guidance"]
    made = library.generate("a lake", seed=5, method="led", guidance=guidance)
    assert text["tokens"] == tokens_digest(made.tokens[0])
    assert download.value.suggested_filename == "lantern-5-led.png"

    page.click("#compare")
    api.expect(page.locator("#status")).to_contain_text("times as fast; 100 %", timeout=30000)
    assert page.locator("#stage figure").count() == 2
    page.check("#overlay")
    assert page.locator("#legend").is_visible()
    assert page.locator("#pictures img").count() == 2

    link = page.locator("#link").get_attribute("href")
    assert "seed=5" in link and "method=led" in link
    page.goto(f"{server.url}/{link}")
    page.reload()
    api.expect(page.locator("#seed")).to_have_value("5")
    assert page.locator("#prompt").input_value() == "a lake"


def test_rows_appear_and_cancel_frees_the_slot(server, page, gate):
    paint(page, method="ar")
    api.expect(page.locator("#cancel")).to_be_enabled()
    gate.let(6)
    api.expect(page.locator("dd").first).to_contain_text("of 16")
    page.keyboard.press("Escape")
    api.expect(page.locator("#status")).to_have_text("Cancelled.")
    page.wait_for_timeout(300)
    gate.let(1)
    server.wait_for(decoding=0)


def test_an_error_is_shown_in_words(page):
    paint(page, prompt="<b>octopus</b>")
    api.expect(page.locator("#status")).to_have_text("prompt: unknown word 'b', 'octopus', 'b'")
    assert page.locator("#status b").count() == 0
    assert "lake" in page.locator("#words").inner_text()
