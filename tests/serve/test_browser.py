"""The page in Chromium, if it and Playwright are installed."""

import io
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from lantern_jax.apps.display.picture_files import tokens_digest

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
    # Errors of requests that tests make fail.
    told = ("400 (Bad Request)", "401 (Unauthorized)", "502 (Bad Gateway)", "503 (Service", "net::ERR_FAILED")
    assert [line for line in wrong if not any(word in line for word in told)] == []


def ours(url: str, server: str) -> bool:
    return url.startswith((f"{server}/", "data:", "blob:"))


def paint(page, prompt: str = "a lake", seed: int = 5, method: str = "led") -> None:
    if not page.locator("#method").is_visible():
        page.click("#advanced summary")
    page.fill("#prompt", prompt)
    page.fill("#seed", str(seed))
    page.select_option("#method", method)
    page.click("#paint")


def done(page, text: str = "Done.") -> None:
    api.expect(page.locator("#status")).to_contain_text(text, timeout=30000)


def painted(page, *asked, **named) -> None:
    paint(page, *asked, **named)
    done(page)


def test_a_picture_has_a_race(server, page):
    painted(page)
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
    done(page, "times as fast; 100 %")
    assert re.search(r"\w+ took \d+ rounds, \w+ \d+ and was", page.locator("#status").inner_text())
    assert page.locator("#stage figure").count() == 2
    page.check("#overlay")
    assert page.locator("#legend").is_visible()
    assert page.locator("#pictures img").count() == 1, "the same picture"

    link = page.locator("text=Permalink").first.get_attribute("href")
    assert "seed=5" in link and "method=led" in link
    page.goto(f"{server.url}/{link}")
    page.reload()
    api.expect(page.locator("#seed")).to_have_value("5")
    assert page.locator("#prompt").input_value() == "a lake"


def test_cancel_keeps_the_rows_so_far(server, page, gate):
    paint(page, method="ar")
    api.expect(page.locator("#cancel")).to_be_enabled()
    # The Escape that closes an input method's suggestions cancels nothing.
    page.evaluate("dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', isComposing: true }))")
    # Until the first row is drawn, which its last pixel shows.
    drawn = "document.querySelector('canvas').getContext('2d').getImageData(15, 0, 1, 1).data[3] > 0"
    for known in range(2, 15):
        gate.let(1)
        api.expect(page.locator("dd").first).to_have_text(f"{known} of 16")
        page.wait_for_timeout(200)
        if page.evaluate(drawn):
            break
    page.keyboard.press("Escape")
    done(page, "Cancelled.")
    api.expect(page.locator("#pictures small")).to_contain_text("unfinished")
    page.wait_for_timeout(300)
    gate.let(1)
    server.wait_for(decoding=0)
    gate.open()
    page.click("text=Paint to the end")
    done(page)
    assert page.locator("#seed").input_value() == "5"


def test_an_error_is_one_line_under_the_prompt(page):
    paint(page, prompt="<b>octopus</b>")
    api.expect(page.locator("#error")).to_have_text("prompt: unknown word 'b', 'octopus', '<', '>'")
    assert page.locator("#error b").count() == 0 and page.locator("[aria-invalid=true]").count() == 1
    page.fill("#prompt", "a forrest")
    page.press("#prompt", "Enter")
    api.expect(page.locator("#error")).to_have_text("prompt: unknown word 'forrest' (did you mean forest?)")
    page.fill("#prompt", " ")
    page.press("#prompt", "Enter")
    api.expect(page.locator("#error")).to_have_text("Say what to paint, or choose one of these.")
    # The Enter that ends an input method's composition; Safari marks it by the key code alone.
    composed = "{ key: 'Enter', keyCode: 229, bubbles: true, cancelable: true }"
    assert page.evaluate(f"$('prompt').dispatchEvent(new KeyboardEvent('keydown', {composed}))")
    page.fill("#prompt", "a lake")
    page.fill("#negative_prompt", "frog")
    page.click("#advanced summary")
    page.press("#prompt", "Enter")
    api.expect(page.locator("#error")).to_contain_text("unknown word 'frog' (did you mean fog?)")
    assert page.locator("[aria-invalid=true]").get_attribute("id") == "negative_prompt"
    page.fill("#negative_prompt", "fog")
    with page.expect_request("**/generations") as asked:
        page.press("#negative_prompt", "Enter")
    assert asked.value.post_data_json["negative_prompt"] == "fog"
    done(page)
    assert page.locator("#error").is_hidden() and page.locator("[aria-invalid=true]").count() == 0
    page.reload()
    api.expect(page.locator("#pictures img")).to_have_count(1)
    assert page.locator("#negative_prompt").input_value() == "fog"
    page.fill("#negative_prompt", "")
    with page.expect_request("**/generations") as asked:
        page.press("#prompt", "Enter")
    assert "negative_prompt" not in asked.value.post_data_json
    done(page)


def test_words_are_chips(page):
    def prompt() -> str:
        return page.locator("#prompt").input_value()

    page.fill("#prompt", "Snowy mountains at twilight by a calm lake")
    pressed = page.locator("#words [aria-pressed=true]")
    assert pressed.all_inner_texts() == ["dusk", "mountains", "snowy", "lake"]
    page.click("#words >> text=night")
    assert prompt() == "Snowy mountains at night by a calm lake"
    page.click("#words >> text=lake")
    assert prompt() == "Snowy mountains at night"
    page.click("#words >> text=river")
    assert prompt() == "Snowy mountains at night, river"
    assert pressed.all_inner_texts() == ["night", "mountains", "snowy", "river"]


def test_a_model_without_words_of_its_own_has_examples(server, page):
    entry = server.client.get("/v1/models").json()
    entry["data"][0]["lantern"] |= {"words": {}, "examples": ["a lake"]}
    page.route("**/v1/models", lambda route: route.fulfill(json=entry))
    page.reload()
    api.expect(page.locator("#examples button")).to_have_text(["a lake"])
    assert page.locator("#known").is_hidden()
    page.fill("#prompt", "a sea")
    page.click("#surprise")
    done(page)
    assert page.locator("#prompt").input_value() == "a lake"


def test_the_page_works_by_keyboard_alone(page):
    page.focus("#prompt")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Surprise me
    done(page)
    assert page.locator(":focus").get_attribute("id") == "surprise"
    page.focus("#speeds :checked")
    page.keyboard.press("ArrowRight")
    assert page.locator("#speeds :checked").input_value() == "faster"
    page.focus("#prompt")
    page.keyboard.press("Enter")
    api.expect(page.locator("figcaption strong")).to_have_text("Faster")
    done(page)
    assert page.locator(":focus").get_attribute("id") == "prompt"
    page.focus("#pictures .remove")
    page.keyboard.press("Enter")
    assert page.locator("#pictures img").count() == 1
    assert page.locator(":focus").get_attribute("class") == "remove"


def test_pictures_of_the_gallery_can_be_continued(server, page):
    painted(page, method="ar")
    page.reload()
    api.expect(page.locator("#pictures img")).to_have_count(1)
    assert page.locator("#stage figcaption").inner_text().startswith("Plain a lake")
    assert "seed 5" in page.locator("#pictures small").inner_text()
    line, frame = page.locator(".line"), page.locator(".frame").bounding_box()
    line.hover()
    page.mouse.down()
    page.mouse.move(frame["x"] + 9, frame["y"] + frame["height"] * 0.7)
    page.mouse.up()
    assert page.locator("output[for=rows]").inner_text() == "3 of 4"
    page.fill("#prompt", "the sea")
    with page.expect_request("**/generations") as asked:
        page.click("#go")
    api.expect(page.locator("dl")).to_contain_text("rows kept", timeout=30000)
    sent = asked.value.post_data_json
    library = server.library().generate("a lake", seed=5, method="ar", guidance=sent["guidance"])
    assert sent["start"] == library.tokens[0].tolist() and sent["keep_rows"] == 3 and sent["seed"] != 5
    assert page.locator("text=Permalink").count() == 0
    page.reload()
    api.expect(page.locator("#pictures img")).to_have_count(2)
    assert page.locator("#stage figcaption").inner_text().startswith("Plain the sea")


def test_a_waiting_client_sees_its_place_in_the_queue(server, page, gate):
    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(lambda: server.ask(n=4))
        server.wait_for(decoding=4)
        second = clients.submit(lambda: server.ask(n=2, temperature=0.5))
        server.wait_for(queue_length=2)
        paint(page)
        done(page, "Waiting: 2 pictures before this one.")
        assert page.locator("#bar").is_visible()
        gate.open()
        assert first.result().status_code == second.result().status_code == 200
    done(page)


def test_a_lost_server_is_looked_for(page):
    painted(page)
    page.route("**/*", lambda route: route.abort())
    page.click("#paint")
    api.expect(page.locator("#lost")).to_contain_text("The server does not answer.")
    assert page.locator("#stage figure").count() == 1, "the picture is still there"
    page.click("#retry")
    api.expect(page.locator("#paint")).to_be_enabled()
    page.unroute("**/*")
    done(page, "The server is back.")
    assert page.locator("#lost").is_hidden()
    page.click("#paint")
    done(page)


def test_a_token_is_asked_for(page):
    """A new token in the middle of a visit changes nothing in the form."""
    painted(page)
    tokens, good = [], ["one"]

    def answer(route):
        token = route.request.headers.get("authorization", "").removeprefix("Bearer ")
        tokens.append(token)
        if token in good:
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": {"message": "a token is needed"}})

    def give(token: str, then: str = "Enter") -> None:
        tokens.clear()
        page.fill("#token", token)
        page.press("#token", then)

    page.route("**/v1/**", answer)
    page.reload()
    api.expect(page.locator("#error")).to_have_text("This server wants a token.")
    give("пароль")
    api.expect(page.locator("#error")).to_contain_text("A token is one word")
    assert page.locator("#lost").is_hidden() and tokens == []
    give("one")
    api.expect(page.locator("#stage figure")).to_have_count(1)
    page.wait_for_timeout(300)
    assert tokens == ["one"] and page.locator("#pictures img").count() == 1
    assert page.locator("#prompt").input_value() == "a lake"

    good[:] = ["two"]
    page.fill("#prompt", "a river")
    page.fill("#guidance", "3")
    page.click("#paint")
    api.expect(page.locator("#token")).to_be_focused()
    give("two", "Tab")
    api.expect(page.locator("#token")).to_be_hidden()
    page.wait_for_timeout(300)
    assert (
        page.locator("#prompt").input_value() == "a river" and page.locator("#guidance").input_value() == "3"
    )
