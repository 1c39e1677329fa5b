"""Plain English: a docstring of a function begins with a verb in the third person, and some phrases are not used."""

import ast
import re

import pytest

from tests.repository.test_structure import ROOT, parsed, path_of

# Words that end like such a verb but are none.
NO_VERBS = {
    *("Its", "This", "As", "Always", "Thus", "Less", "Is", "Has", "Was", "Us", "Yes", "Others"),
    *("Bytes", "Codes", "Features", "Files", "Keys", "Numbers", "Pictures", "Positions", "Prompts"),
    *("Parameters", "Rows", "Seconds", "Settings", "Shapes", "Sizes", "Tokens", "Values"),
}
# Also where a line ends between their words, in comments and strings too.
PHRASES = re.compile(
    r"\b(so many|whatever|at once|gone on with|nobody|last wishes)\b".replace(" ", r"[\s#]+"), re.I
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def begins_with_a_verb(function: Function) -> bool:
    """Tells whether its docstring does; properties need none."""
    decorators = {ast.unparse(decorator).split(".")[-1] for decorator in function.decorator_list}
    docstring = ast.get_docstring(function)
    if not docstring or decorators & {"property", "cached_property"}:
        return True
    word = re.match(r"[A-Z][a-z]+", docstring)
    return bool(word) and word[0].endswith("s") and word[0] not in NO_VERBS


@pytest.mark.parametrize("folder", ["lantern_jax", "train", "eval"])
def test_english_is_plain(folder):
    found = []
    for name, tree in parsed(folder).items():
        place, text = path_of(name).relative_to(ROOT), path_of(name).read_text("utf-8")
        for node in ast.walk(tree):
            if isinstance(node, Function) and not begins_with_a_verb(node):
                found.append(f"{place}:{node.lineno}: the docstring of {node.name} begins with no verb")
        for match in PHRASES.finditer(text):
            found.append(f"{place}:{text[: match.start()].count(chr(10)) + 1}: {match[0]!r}")
    assert not found, "\n".join(found)
