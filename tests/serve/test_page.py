"""The page: one file that contacts no other server, runs nothing but its own script, and can be read aloud."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from importlib import resources

from lantern_jax.apps.metrics.landscapes import LANDSCAPES
from lantern_jax.apps.serve.access import content_policy
from lantern_jax.decoding.acceptance import LanternPlusPlus

PAGE = resources.files("lantern_jax.apps.serve").joinpath("page.html").read_text(encoding="utf-8")


class Elements(HTMLParser):
    def __init__(self, page: str):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def of(self, *tags: str) -> list[dict]:
        return [attributes for tag, attributes in self.found if tag in tags]


ELEMENTS = Elements(PAGE)


def test_the_page_is_served_with_a_policy_that_lets_only_its_own_script_run(server):
    response = server.client.get("/")
    assert response.text == PAGE and response.headers["content-type"].startswith("text/html")
    policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    script = re.search(r"<script>(.*?)</script>", PAGE, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy["script-src"] == f"'sha256-{digest}'" and policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'" and policy["frame-ancestors"] == "'none'"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert "'sha256-" in content_policy("<script>x</script>") and "'none'" in content_policy("")


def test_nothing_is_fetched_from_elsewhere():
    assert not re.search(r"(https?:)?//[a-z0-9.-]+\.[a-z]{2,}", PAGE.replace("//www.w3.org", ""))
    for attributes in (attributes for _, attributes in ELEMENTS.found):
        assert "src" not in attributes and not any(name.startswith("on") for name in attributes)
        assert "style" not in attributes, "the policy forbids it"
        assert attributes.get("href", "#") in ("#", "data:,")
    assert not re.search(r"@import|url\(", PAGE)
    # Text stays text.
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in PAGE, word


def test_everything_has_a_name():
    labels = {attributes.get("for") for attributes in ELEMENTS.of("label")}
    inside = {"keep", "overlay"}  # Within their labels.
    for attributes in ELEMENTS.of("input", "select", "textarea"):
        assert attributes["id"] in labels | inside
    assert ELEMENTS.of("html")[0]["lang"] == "en" and len(ELEMENTS.of("h1")) == 1
    assert any(attributes.get("aria-live") == "polite" for _, attributes in ELEMENTS.found)
    names = set(re.findall(r'\$\("([a-z-]+)"\)', PAGE))
    assert names <= {attributes.get("id") for _, attributes in ELEMENTS.found}


def test_the_model_entry_has_what_the_page_makes_its_controls_from(server):
    (entry,) = server.client.get("/v1/models").json()["data"]
    assert entry["id"] == "tiny" and server.client.get("/v1/models/tiny").json() == entry
    told = entry["lantern"]
    assert [told[name] for name in ("width", "height", "rows", "columns", "tokens")] == [16, 16, 4, 4, 16]
    assert told["methods"]["auto"]["rule"] == "strict" and told["methods"]["lantern-g"]["rule"] == "lantern++"
    assert "medusa" not in told["methods"], "the tiny checkpoint has no such drafter"
    assert list(told["numbers"]) == ["guidance", "temperature", "top_k", "top_p", "min_p"]
    guidance = {"default": 2.0, "range": "a finite number >= 0", "note": "1 turns it off"}
    assert guidance.items() <= told["numbers"]["guidance"].items()
    slider = next(one for one in ELEMENTS.of("input") if one["id"] == "lam")
    assert float(slider["value"]) == LanternPlusPlus().lam
    assert told["negative_prompt"], "words of the unconditional row"
    assert told["words"]["water"]["lake"][0] == "lake" and "moonlit" in told["words"]["time"]["night"]
    assert set().union(*(words for values in told["words"].values() for words in values.values())) == set(
        LANDSCAPES.words
    )
    assert len(told["examples"]) == 4
    assert server.ask(prompt=told["examples"][-1], method="ar").status_code == 200
    assert len(PAGE.splitlines()) < 1100
