"""Caption cleaning as for LlamaGen's text features: the rules of DeepFloyd IF's T5 pipeline, as tables.

Written for captions scraped from the web, the rules drop links, markup, file names, article numbers and shop phrases,
and unify dashes and quotes. LlamaGen applies them twice, and so does ``clean_caption``. One difference: the original
repairs wrongly decoded text (ftfy); here only ligatures, wide characters and curly quotes get their plain form.
"""

import html
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from html.parser import HTMLParser
from urllib.parse import unquote_plus

# A pattern and its replacement.
Rule = tuple[re.Pattern, str]
Step = Callable[[str], str]


def clean_caption(text: str) -> str:
    """Returns a caption cleaned like those that LlamaGen's text encoder saw, in lower case and perhaps empty."""
    for _ in range(2):
        for step in STEPS:
            text = step(text)
    return text


def _rules(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple((re.compile(pattern), replacement) for pattern, replacement in pairs)


def _replace(rules: Sequence[Rule], text: str) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


# A match is a link's scheme alone, or a host name with its path; a name before "@" is half of an e-mail address.
# Host names have up to 253 letters, so no more are examined from each letter on, however long the text is.
_HOST = r"[a-z0-9.\-]{1,253}\.(?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)"


def _link(scheme: str) -> str:
    return rf"\b(?:{scheme}:(?:/{{1,3}}|[a-z0-9%])|{_HOST})"


LINKS = _rules(("<person>", "person"), (_link("https?"), ""), (_link("www"), ""))

# Everything between U+31C0 and U+9FFF: strokes, phonetic extensions, enclosed and compatibility letters,
# ideographs and hexagrams.
_CJK = "\u31c0-\u9fff"
_DASHES = (
    "\u002d\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40"
    "\u301c\u3030\u30a0\ufe31\ufe32\ufe58\ufe63\uff0d"
)
_FILE_ENDINGS = "png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4"
_ORNAMENTS = re.escape("#®•©™&@·º½¾¿¡§~)(][}{|\\/*")

MARKS = _rules(
    (r"@\w+\b", ""),  # user names
    (f"[{_CJK}]+", ""),
    (f"[{_DASHES}]+", "-"),
    ("[`\u00b4\u00ab\u00bb\u201c\u201d\u00a8]", '"'),  # double quotes of all kinds, accents used as quotes
    ("[\u2018\u2019]", "'"),
    ("&quot;?", ""),
    ("&amp", ""),
    (r"\d{1,3}(?:\.\d{1,3}){3}", " "),  # network addresses
    (r"\d:\d\d\s+$", ""),  # times at the end
    (r"\\n", " "),  # a line break written out
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),  # article numbers
    (rf"(?<!\S)\S+\.(?:{_FILE_ENDINGS})", ""),
    (r"[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (f"[{_ORNAMENTS}]+", " "),
    (r"\s+\.\s+", " "),
)

WORDS = _rules(
    (r"\b[a-z]{1,3}\d{3,15}\b", ""),  # jc6640
    (r"\b[a-z]+\d+[a-z]+\b", ""),  # jc6640vc
    (r"\b\d+[a-z]+\d+\b", ""),  # 6640vc231
    (r"(?:worldwide\s+)?(?:free\s+)?shipping", ""),
    (r"(?:free\s)?download(?:\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b(?:{_FILE_ENDINGS})(?:\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-z]+\d+[a-z]+\d+[a-z\d]*\b", " "),  # j2d1a2a
    (r"\b\d+\.?\d*[xх×]\d+\.?\d*\b", ""),  # noqa: RUF001  sizes, 640x480
)

SPACES = _rules((r"\b\s+:\s+", ": "), (r"(\D[,./])\b", r"\1 "), (r"\s+", " "))

EDGES = _rules(
    (r"(?s)^[\"'](.+)[\"']$", r"\1"),  # a caption in quotes
    (r"^['_,\-:;]", ""),
    (r"['_,\-:+]$", ""),
    (r"^\.\S+$", ""),
)


class _Text(HTMLParser):
    """The text of HTML without tags, comments, styles and scripts; entities are resolved."""

    def __init__(self):
        super().__init__()
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.parts.append(data)


def _without_markup(text: str) -> str:
    if not re.search("[<&]", text):
        return text
    parser = _Text()
    try:
        parser.feed(text)
        parser.close()
    # Some versions of the parser fail on half a declaration ("<![").
    except AssertionError:
        return text
    return "".join(parser.parts)


def _without_connectors(text: str) -> str:
    """Replaces hyphens and underscores with spaces if there are four or more: the words of a file name or link."""
    return re.sub("[-_]", " ", text) if len(re.findall("[-_]", text)) > 3 else text


_LIGATURES = "ĲĳŉǄ-ǌǱ-ǳﬀ-ﬆ"
_WIDE = "\u3000\uff01-\uffef"
_FOLDED = re.compile(f"[{_LIGATURES}{_WIDE}]")
_CONTROLS = "\u0000-\u0008\u000b\u000e-\u001f\u007f\u206a-\u206f\ufeff\ufff9-\ufffb"
QUOTES = _rules(("[\u02bc\u2018-\u201b]", "'"), ("[\u201c-\u201f]", '"'), (f"[{_CONTROLS}]", ""))


def plain_characters(text: str) -> str:
    """Resolves entities, gives ligatures and wide characters their usual form, and composes (NFC)."""
    text = html.unescape(text)
    text = _FOLDED.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    text = unicodedata.normalize("NFC", _replace(QUOTES, text))
    return html.unescape(html.unescape(text)).strip()


STEPS: tuple[Step, ...] = (
    unquote_plus,
    lambda text: text.strip().lower(),
    partial(_replace, LINKS),
    _without_markup,
    partial(_replace, MARKS),
    _without_connectors,
    plain_characters,
    partial(_replace, WORDS),
    partial(_replace, SPACES),
    partial(_replace, EDGES),
    str.strip,
)
