"""How the code is built: sizes, imports that point one way, nothing in the library that only tests use."""

import ast
import builtins
import re
import symtable
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from pickle import Unpickler

import pytest

from tests.repository.public import listed

ROOT = Path(__file__).resolve().parents[2]
# What runs outside the tests.
FOLDERS = ("lantern_jax", "train", "eval", "configs")
MODULE_LINES, FUNCTION_LINES = 400, 80
# Modules that grow most easily.
_GROWING = ("lantern_jax.pipeline.pipeline", "lantern_jax.engine.engine", "lantern_jax.decoding.loop")
SMALL = {name: 300 for name in _GROWING}
# The rooms of the package from the ground up: a room imports only those before it. The spine imports no app.
SPINE = (
    *(
        "io",
        "kernels",
        "devices",
        "decoding",
        "models",
        "tensors",
        "text",
        "pictures",
        "families",
        "drafters",
        "checkpoints",
    ),
    *("engine", "settings", "pipeline"),
)
# Public names by what they are; nothing in the package imports these.
NAMESPACES = ("couplings", "draftings", "rules")
APPS = ("terminal", "display", "foreign", "sets", "metrics", "convert", "measuring", "serve", "commands")
ROOMS = (*SPINE, *(f"apps.{room}" for room in APPS))


@cache
def parsed(folder: str) -> dict[str, ast.Module]:
    """Returns the syntax trees of a folder's modules by their dotted names; a package's own is the package's name."""
    trees = {}
    for file in sorted((ROOT / folder).rglob("*.py")):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        trees[name] = ast.parse(file.read_text("utf-8"))
    return trees


@cache
def modules() -> dict[str, ast.Module]:
    return {name: tree for folder in FOLDERS for name, tree in parsed(folder).items()}


def path_of(name: str) -> Path:
    path = ROOT.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def graph() -> dict[str, set[str]]:
    """Returns the modules that each module imports anywhere, in functions too."""
    known = set(modules())

    def imported(tree: ast.Module) -> set[str]:
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

    return {name: imported(tree) for name, tree in modules().items()}


def late() -> Iterator[tuple[str, str, str]]:
    """Yields (module, the module that it names, what of it) for every text "lantern_jax.module:NAME"."""
    for name, tree in modules().items():
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if found := re.fullmatch(r"(lantern_jax(?:\.\w+)+):(\w+)", text):
                yield name, found[1], found[2]


@cache
def names_of(module: str) -> frozenset[str]:
    """Returns the names that a module defines or imports."""
    path = path_of(module)
    table = symtable.symtable(path.read_text("utf-8"), str(path), "exec")
    found = {one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported()}
    return frozenset(found | {one.get_name() for one in table.get_symbols() if one.is_namespace()})


def unknown_names(module: str) -> set[str]:
    """Returns the names that a module or a function in it uses and nothing defines."""
    path = path_of(module)
    known, found = names_of(module) | {*dir(builtins), "__file__"}, set()

    def visit(table: symtable.SymbolTable, top: bool) -> None:
        for one in table.get_symbols():
            if one.is_referenced() and (top or one.is_global()) and one.get_name() not in known:
                found.add(one.get_name())
        for inner in table.get_children():
            visit(inner, False)

    visit(symtable.symtable(path.read_text("utf-8"), str(path), "exec"), True)
    return found


def test_kinds_are_where_their_tables_say():
    found = list(late())
    assert len(found) > 9 and not [one for one in found if one[2] not in names_of(one[1])]


def test_every_name_is_defined_where_it_is_used_and_imported_from():
    """In functions too, which no test may call: the linter takes the axes of shapes for names, so it cannot tell."""
    unknown = {name: found for name in modules() if (found := unknown_names(name))}
    assert not unknown
    missing = []
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in modules() and node.module != "lantern_jax":
                there = names_of(node.module)
                missing += [
                    (name, node.module, alias.name)
                    for alias in node.names
                    if alias.name not in there and f"{node.module}.{alias.name}" not in modules()
                ]
    assert not missing


def test_imports_have_no_cycles():
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, [*above[above.index(name) :], name]
        if name not in done:
            for other in sorted(graph()[name]):
                visit(other, (*above, name))
            done.add(name)

    for name in graph():
        visit(name, ())
    assert "lantern_jax.io.files" in graph()["lantern_jax.checkpoints.store"], "the graph has no edges"


def room_of(name: str) -> str:
    """Returns the room of a module of the package: ``io``, or ``apps.serve``."""
    _, first, *rest = name.split(".")
    return f"apps.{rest[0]}" if first == "apps" and rest else first


def test_no_import_points_up_and_every_module_is_in_a_room():
    floors = {room: floor for floor, room in enumerate(ROOMS)}
    floor = {name: floors.get(room_of(name), -1) for name in graph() if name.startswith("lantern_jax.")}
    edges = [(name, other) for name in floor for other in graph()[name]]
    # The command's start is above all rooms.
    climbs = [edge for edge in edges if floor.get(edge[1], -1) > floor[edge[0]] and edge[0].count(".") > 1]
    assert not climbs
    assert not [edge for edge in edges if edge[1].removeprefix("lantern_jax.") in NAMESPACES]
    package = ROOT / "lantern_jax"
    namespaces = {f"{name}.py" for name in NAMESPACES}
    assert {path.name for path in package.glob("*.py")} == {"__init__.py", "__main__.py", *namespaces}
    assert {path.name for path in (package / "apps").glob("*.py")} == {"__init__.py"}
    rooms = {path.parent.relative_to(package) for path in package.glob("**/__init__.py")}
    assert {
        ".".join(room.parts) for room in rooms if room.parts[:1] in {(name,) for name in (*SPINE, "apps")}
    } >= {*ROOMS}


def test_the_spine_imports_no_app():
    """Nor names one to be imported late: whoever uses the library needs none of them."""
    named = {(name, module) for name, module, _ in late()}
    edges = {(name, other) for name in graph() for other in graph()[name]} | named
    spine = tuple(f"lantern_jax.{room}." for room in SPINE)
    assert not [
        edge for edge in edges if edge[0].startswith(spine) and edge[1].startswith("lantern_jax.apps")
    ]


@pytest.mark.parametrize("folder", [*FOLDERS, "tests"])
def test_modules_and_functions_are_small(folder):
    large = []
    for name, tree in parsed(folder).items():
        lines = len(path_of(name).read_text("utf-8").splitlines())
        if lines > SMALL.get(name, MODULE_LINES):
            large.append(f"{name}: {lines} lines")
        for node in ast.walk(tree):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and node.end_lineno - node.lineno >= FUNCTION_LINES:
                large.append(f"{name}.{node.name}")
    assert not large, "\n".join(large)


def definitions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields (name, name with its class) of a module's functions, classes, constants and methods."""
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


def used() -> set[str]:
    """Returns the names that code outside the tests reads or imports, and words of its strings, which Flax calls."""
    names = set()
    for node in (node for tree in modules().values() for node in ast.walk(tree)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            names.add(node.value)
    return names.union(*(thing.split(".") for _, _, thing in late()))


def test_nothing_is_there_for_tests_only():
    """Except the public API, its classes' methods included."""
    public = {name for _, name in listed()}
    # Methods that the standard library and notebooks call.
    known = used() | {*dir(HTMLParser), *dir(Unpickler), "_repr_html_", "_repr_png_"}
    assert not [
        f"{module}.{whole}"
        for module, tree in parsed("lantern_jax").items()
        for name, whole in definitions(tree)
        if not (name.startswith("__") or whole.split(".")[0] in public or name in known)
    ]


# What opens files beside ``files.open_file``: never one that somebody else wrote.
_NAMES = (
    "io.files",
    "apps.commands.options",
    "apps.terminal.streams",
    "devices.kept",
    "devices.platform",
)
OPENERS = tuple(f"lantern_jax.{name}" for name in _NAMES)


def openings(tree: ast.Module) -> Iterator[str]:
    """Yields calls that open or read a file by its name, except the package's own ``resources``."""
    for node in ast.walk(tree):
        last = isinstance(node, ast.Call) and (getattr(node.func, "attr", "") or getattr(node.func, "id", ""))
        if last not in ("open", "read_text", "read_bytes", "load", "open_memmap"):
            continue
        call, words = ast.unparse(node.func), [ast.unparse(argument) for argument in node.args]
        reads = call.endswith((".read_text", ".read_bytes")) and not call.startswith("resources.")
        reads |= call in ("open", "os.open", "np.load", "json.load", "np.lib.format.open_memmap")
        # An archive's entry is opened by a name, a tar of an open file by ``fileobj``.
        reads |= call.endswith(".open") and bool(words) and words[0] in ("'r'", "'rb'", "'rt'")
        if reads and not any(keyword.arg == "mode" for keyword in node.keywords):
            yield f"{call}({', '.join(words)})"


def test_files_are_opened_in_one_place():
    """Elsewhere a pipe that a user names would be waited for, and a device read without end."""
    elsewhere = [name for name in modules() if name not in OPENERS and not name.startswith("eval")]
    assert not [(name, call) for name in elsewhere for call in openings(modules()[name])]
