"""Lists of prompts: what is read, and a one-line error for what is wrong."""

import json
import os
from pathlib import Path

import pytest

from lantern_jax.apps.commands.prompt_files import class_list, read_columns, read_prompts
from tests.refused import refused


@pytest.fixture
def file(tmp_path):
    def write(name: str, content: str | bytes):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def annotations(*pairs) -> str:
    return json.dumps({"annotations": [{"image_id": picture, "caption": text} for picture, text in pairs]})


LINES = {
    "a lake\na sea": ("a lake", "a sea"),
    "a lake\r\n a  sea \r\n": ("a lake", " a  sea "),
    "\ufeffa lake\n": ("a lake",),
    "one\u2028line, tab\there\n": ("one\u2028line, tab\there",),
    "a lake\na lake\n": ("a lake", "a lake"),
}


@pytest.mark.parametrize("content", LINES)
def test_lines(file, content):
    assert read_prompts(file("prompts.txt", content)) == LINES[content]


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="names of open pipes")
def test_a_pipe_is_read_once():
    """As a shell names the output of a command: <(...), or /dev/stdin."""

    def given(text):
        reading, writing = os.pipe()
        os.write(writing, text)
        os.close(writing)
        return f"/dev/fd/{reading}"

    assert read_prompts(given(b"a lake\nsnow\n")) == ("a lake", "snow")
    assert read_columns(given(b"a\tb\nx\ty\n"), "b", "a") == [("y",), ("x",)]
    with refused("is empty: give prompts"):
        read_prompts(given(b""))


def test_a_column(file):
    path = file("p.tsv", 'Prompt\tCategory\na "big" lake\tx\n"said ""hi"""\ty\n')
    assert read_prompts(path, "Prompt") == ('a "big" lake', 'said "hi"')
    assert read_prompts(path, "Category") == ("x", "y")


def test_the_longest_caption_of_every_picture_is_read_in_order_of_appearance(file):
    content = annotations(
        (9, "short"), (2, "equal"), (9, "much longer"), (2, "EQUAL"), (5, "x "), (9, "long")
    )
    assert read_prompts(file("captions.json", content)) == ("much longer", "equal", "x ")


def test_classes():
    assert class_list("0-3") == ("0", "1", "2", "3")
    assert class_list("207, 360,5-6") == ("207", "360", "5", "6")
    for text in ("", "a", "3-1", "1,,2", "-1", "1-", "0-999999,0-999999"):
        with refused("classes"):
            class_list(text)


@pytest.mark.parametrize(("name", "content", "column", "line"), [
    ("p.txt", "a\n\nb\n", None, "p.txt, line 2 is empty"), ("p.txt", "a\n\n", None, "p.txt, line 2 is empty"),
    ("p.txt", "", None, "p.txt is empty"), ("p.txt", b"a\n\xff\n", None, r"not text in UTF-8 \(byte 2\)"),
    ("p.txt", "a\0b\n", None, "line 1 holds a zero byte"),
    ("p.tsv", "A\tB\nx\ty\n", None, r"is a table: name the column .* \(A, B\)"),
    ("p.tsv", "A\tB\nx\ty\n", "C", r"has no column 'C': its first line names \['A', 'B'\]"),
    ("p.tsv", "A\tA\nx\ty\n", "A", "has 2 column 'A'"),
    ("p.tsv", "A\tB\nx\n", "A", "line 2 has 1 cells for 2 columns"),
    ("p.tsv", "A\tB\nx\ty\n\t\n", "A", "line 3, column 'A' is empty"),
    ("p.tsv", "A\tB\n", "A", "no row below its names"),
    ("p.tsv", 'A\tB\n"x" y\tz\n', "A", "line 2: .*: give cells between tabs"), ("p.json", "[", None, "is not JSON"),
    ("p.json", '{"annotations": []}', None, "no list 'annotations'"),
    ("p.json", '{"annotations": [{"caption": "a"}]}', None, "annotation 0 lacks image_id or caption"),
    ("p.json", annotations((1, "a"), (1, " ")), None, "annotation 1 is empty"),
    ("p.json", annotations((1, 7)), None, "annotation 0 is 7, which is not text"),
    ("p.json", annotations((1, "a \ud800")), None, r"annotation 0 'a .*' is not text in UTF-8: leave out '.ud800'"),
])  # fmt: skip
def test_wrong_files_are_refused(file, name, content, column, line):
    with refused(line):
        read_prompts(file(name, content), column)
    with refused("is not a file"):
        read_prompts(file(name, content).with_name("none.txt"))
