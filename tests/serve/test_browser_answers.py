"""What the page in Chromium makes of answers: notes, refusals, ties, and pictures of one's own."""

import pytest
from PIL import Image

api = pytest.importorskip("playwright.sync_api")

from tests.serve.test_browser import browser, done, page, paint, painted, pytestmark  # noqa: E402, F401


@pytest.mark.filterwarnings("ignore::lantern_jax.IgnoredWords")
def test_a_prompt_is_drawn_without_its_unknown_words_or_its_refusal_is_seen(page):  # noqa: F811
    painted(page, "a lake with a castle")
    assert "ignored, the model does not know: 'castle'" in page.locator("#stage figcaption").inner_text()
    assert page.locator("#stage").bounding_box()["y"] < 400, "on a phone the picture is above the form"
    page.fill("#prompt", "octopus")
    page.click("#go")
    done(page, "Not painted: prompt: unknown word 'octopus'")
    top = page.locator("#error").bounding_box()["y"]
    assert (
        0 < top < page.locator("#actions").bounding_box()["y"] and page.locator("#stage figure").count() == 1
    )


def test_a_picture_of_ones_own_is_continued(page, tmp_path):  # noqa: F811
    Image.new("RGB", (40, 40), "teal").save(tmp_path / "own.png")
    page.click("#advanced summary")
    page.set_input_files("#upload", tmp_path / "own.png")
    with page.expect_request("**/edits") as asked:
        paint(page, method="ar")
    done(page)
    assert asked.value.headers["content-type"].startswith("multipart/form-data")
    assert "rows kept" in page.locator("dl").inner_text() and page.locator("text=Permalink").count() == 0
    with page.expect_request("**/generations"):
        page.click("#go")
    done(page)
    page.reload()
    api.expect(page.locator("#pictures img")).to_have_count(2)


def test_lambda_is_a_field_of_the_method(page):  # noqa: F811
    page.click("#advanced summary")
    assert page.locator("#lam").is_hidden()
    page.select_option("#method", "lantern-g")
    page.fill("#lam", "3")
    with page.expect_request("**/generations") as asked:
        page.click("#paint")
    assert asked.value.post_data_json["method"] == "lantern-g:lam=3"
    done(page)
    page.reload()
    api.expect(page.locator("#method")).to_have_value("lantern-g")
    assert page.locator("#lam").input_value() == "3"
