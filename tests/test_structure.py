"""How the code is built: sizes, imports without cycles, nothing in the library that only tests use."""

import ast
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

import lantern_jax

ROOT = Path(__file__).resolve().parents[1]
# What runs outside the tests.
FOLDERS = ("lantern_jax", "train", "eval", "configs")
MODULE_LINES, FUNCTION_LINES = 400, 80
# Modules that grow most easily.
_GROWING = ("lantern_jax.pipeline.pipeline", "lantern_jax.engine.engine", "lantern_jax.decoding.loop")
SMALL = {name: 300 for name in _GROWING}
# The rooms of the package from the ground up: each stands on those before it, and knows none after it.
ROOMS = (
    *("io", "kernels", "devices", "decoding", "models", "tensors", "text", "pictures", "families", "metrics"),
    *("checkpoints", "engine", "settings", "pipeline", "measuring", "serve", "sets", "commands"),
)


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax trees of all modules by their dotted name; a package's own is the package's name."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files
    ]
    return {
        name: ast.parse(file.read_text(encoding="utf-8")) for name, file in zip(names, files, strict=True)
    }


def path_of(name: str) -> Path:
    path = ROOT.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imported(tree: ast.Module, known: set[str]) -> set[str]:
    """The known modules that a module imports anywhere, in functions too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            # Names that are modules, or things of the module they come from.
            found |= parts & known or {node.module}
    return found & known


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a ring; none if there is no such ring."""
    done: set[str] = set()

    def visit(name: str, above: list[str]) -> list[str]:
        if name in above:
            return [*above[above.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            ring = visit(other, [*above, name])
            if ring:
                return ring
        done.add(name)
        return []

    return next(filter(None, (visit(name, []) for name in graph)), [])


def test_imports_have_no_cycles():
    known = set(modules())
    graph = {name: imported(tree, known) for name, tree in modules().items()}
    assert not cycle(graph)
    assert "lantern_jax.io.files" in graph["lantern_jax.checkpoints.store"], "the graph has no edges"
    ring = {"a": {"b"}, "b": {"c"}, "c": {"b"}}
    assert cycle(ring) == ["b", "c", "b"]


def climbs(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """The imports of a room by one that stands before it in ``ROOMS``."""
    floors = {room: floor for floor, room in enumerate(ROOMS)}
    floor = {name: floors.get(name.split(".")[1], -1) for name in graph if name.count(".") > 1}
    return {(name, other) for name in floor for other in graph[name] if floor.get(other, -1) > floor[name]}


def test_no_import_points_up():
    known = set(modules())
    graph = {
        name: imported(tree, known) for name, tree in modules().items() if name.startswith("lantern_jax")
    }
    assert not climbs(graph)
    upward = {"lantern_jax.io.files": {"lantern_jax.engine.jobs"}, "lantern_jax.engine.jobs": set()}
    assert climbs(upward) == {("lantern_jax.io.files", "lantern_jax.engine.jobs")}


def test_every_module_is_in_a_room():
    package = ROOT / "lantern_jax"
    assert {path.name for path in package.glob("*.py")} == {"__init__.py", "__main__.py"}
    assert {path.parent.name for path in package.glob("*/__init__.py")} == set(ROOMS)


@pytest.mark.parametrize("name", modules())
def test_modules_and_functions_are_small(name):
    tree, limit = modules()[name], SMALL.get(name, MODULE_LINES)
    assert len(path_of(name).read_text(encoding="utf-8").splitlines()) <= limit
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < FUNCTION_LINES, node.name


def definitions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name, name with its class) of a module's functions, classes, constants and methods."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node.name
        for target in node.targets if isinstance(node, ast.Assign) else ():
            for leaf in ast.walk(target):
                if isinstance(leaf, ast.Name):
                    yield leaf.id, leaf.id
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and not part.name.startswith("__"):
                    yield part.name, f"{node.name}.{part.name}"


@cache
def used() -> set[str]:
    """Every name that code outside the tests reads or imports, and words of its strings: Flax takes methods by name."""
    names = set()
    for tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                names.add(node.id)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.ImportFrom):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                names.add(node.value)
    return names


def test_nothing_is_there_for_tests_only():
    """But for the public API, its classes' methods included."""
    public = set(lantern_jax.__all__)
    # Methods that the standard library and notebooks call.
    called = {*dir(HTMLParser), "_repr_html_", "_repr_png_"}
    unused = []
    for module, tree in modules().items():
        if not module.startswith("lantern_jax"):
            continue
        for name, whole in definitions(tree):
            if name.startswith("__") or whole.split(".")[0] in public or name in used() | called:
                continue
            unused.append(f"{module}.{whole}")
    assert not unused
    assert "write_files" in used() and "nothing_of_this_name" not in used()


def test_modules_are_imported_by_more_than_tests():
    known = set(modules())
    reached = {f"lantern_jax.{home}" for home in lantern_jax._MODULES} | {"lantern_jax.__main__"}
    for name, tree in modules().items():
        reached |= imported(tree, known) - {name}
    # A package counts through its modules.
    packages = {name for name in known if path_of(name).name == "__init__.py"}
    assert {name for name in known - packages if name.startswith("lantern_jax")} <= reached


# What opens files beside ``files.open_file``: none of them one that somebody else wrote.
OPENERS = (
    "lantern_jax.io.files",
    "lantern_jax.io.locks",
    "lantern_jax.commands.options",
    "lantern_jax.io.streams",
)


def openings(tree: ast.Module) -> Iterator[str]:
    """Calls that open, or read, a file by its name; of the package's own, ``resources``, none."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        call, words = ast.unparse(node.func), [ast.unparse(argument) for argument in node.args]
        reads = call.endswith((".read_text", ".read_bytes")) and not call.startswith("resources.")
        reads |= call in ("open", "os.open", "np.load", "json.load", "np.lib.format.open_memmap")
        # An archive's entry is opened by a name, a tar of an open file by ``fileobj``.
        reads |= call.endswith(".open") and bool(words) and words[0] in ("'r'", "'rb'", "'rt'")
        if reads and not any(keyword.arg == "mode" for keyword in node.keywords):
            yield f"{call}({', '.join(words)})"


def test_files_are_opened_in_one_place():
    """Of any that a user names: elsewhere a pipe would be waited for, and a device read without end."""
    for name in sorted(set(modules()) - set(OPENERS)):
        if not name.startswith("eval"):
            assert not list(openings(modules()[name])), name
    wrong = (
        "Path(x).open('rb'); path.read_text(); np.load(x); open(x); archive.open(name); resources.read_text()"
    )
    assert len(list(openings(ast.parse(wrong)))) == 4


def test_fixtures_of_tests_are_not_in_the_library():
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom | ast.Import):
                words = [getattr(node, "module", None), *(alias.name for alias in node.names)]
                assert not any(word and word.split(".")[0] in ("tests", "pytest") for word in words), name
