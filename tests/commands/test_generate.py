"""The ``lantern`` command, in process: outputs, one-line errors, nothing left behind."""

import argparse
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lantern_jax.engine.compiler
import lantern_jax.engine.engine
import lantern_jax.pipeline.pipeline
from lantern_jax.apps.commands import outputs
from lantern_jax.apps.commands.command_line import Parser
from lantern_jax.apps.commands.main import main, make_parser
from lantern_jax.decoding.choices import DRAFTINGS, RULES
from lantern_jax.decoding.methods import METHODS, Method
from lantern_jax.devices import compilation
from lantern_jax.pipeline.plan import Plan
from lantern_jax.settings import recipe
from lantern_jax.settings.settings import OPTIONS
from lantern_jax.settings.tuned import Found
from tests.command import assert_refused, files, must_not_run
from tests.tiny_checkpoint import (
    CODES,
    NEIGHBOURS,
    SIDE,
    TOKENS,
    sharing_programs,
    strict_pipeline,
    tiny_pipeline,
)

PROMPT = "snowy mountains at dusk by a calm lake"
NAMED = "snowy-mountains-at-dusk-by-a-calm-lake-0"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load = lantern_jax.pipeline.pipeline.load

    def load_tiny(model, dtype=None, tuned="off", mesh=None, strict_words=False):
        if model == "demo":
            return strict_pipeline() if strict_words else tiny_pipeline()
        return sharing_programs(load)(model, dtype, tuned, mesh="data=1")

    monkeypatch.setattr(lantern_jax.pipeline.pipeline, "load", load_tiny)
    return tmp_path


def size(path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def test_one_picture(folder, capsys):
    assert main(["generate", PROMPT]) == 0
    name = NAMED
    assert files(folder) == {f"{name}.png"}
    with Image.open(f"{name}.png") as image:
        np.testing.assert_array_equal(np.asarray(image), tiny_pipeline().generate(PROMPT).pictures[0])
    printed = capsys.readouterr()
    assert printed.err == ""
    for row in (
        "passes of the model", "tokens per pass", "seconds", "compile seconds", "tokens substituted", f"{name}.png",
    ):  # fmt: skip
        assert row in printed.out
    # Without --out nothing is refused and no existing file is overwritten.
    assert main(["generate", PROMPT]) == main(["generate", PROMPT, "a lake", "--seed", "3"]) == 0
    assert main(["generate", PROMPT, "--show-acceptance", "--overwrite"]) == 0
    names = {f"{name}.png", f"{name}-2.png", f"{name}-accepted.png", f"{name[:-1]}3"}
    assert {found for found in files(folder) if "/" not in found} == names


def test_explain_shows_the_settings_of_a_file_in_place_of_a_choice(capsys, monkeypatch):
    assert main(["generate", PROMPT, "--explain"]) == 0
    assert "--tuned is off or a file" in capsys.readouterr().out
    found = Found(file=Path("tuned.json"), rows=["what a file comes before"])
    settled = tiny_pipeline().settings({}), found
    monkeypatch.setattr(tiny_pipeline(), "_settled", lambda pictures, options: settled)
    assert main(["generate", PROMPT, "--explain"]) == 0
    assert "auto chooses nothing: the settings are those of tuned.json\n" in capsys.readouterr().out


def test_a_race_is_written_beside_the_picture(capsys):
    assert main(["generate", PROMPT, "--race", "race.webp", "--out", "a.png"]) == 0
    assert "100.0% of the tokens are plain decoding's" in capsys.readouterr().out
    assert size("a.png") == (SIDE, SIDE), "the picture alone, though both were decoded"
    with Image.open("race.webp") as race:
        assert race.n_frames > 1 and race.size[0] > 2 * SIDE
    for name, wrong in (("race.mp4", "race 'race.mp4' is not valid"), ("race.webp", "race.webp exists")):
        assert wrong in assert_refused(["generate", PROMPT, "--race", name], capsys)


def test_comparison_overlay_and_statistics(folder, capsys, monkeypatch):
    """Also, the settings are resolved once and the program cache is asked for once."""
    resolved, kept = [], []
    resolve = recipe.resolve_settings
    counted = lambda *args, **more: resolved.append(args) or resolve(*args, **more)  # noqa: E731
    monkeypatch.setattr(recipe, "resolve_settings", counted)
    monkeypatch.setattr(compilation, "keep_compiled_programs", lambda: kept.append(True))
    arguments = ["generate", PROMPT, "--compare", "--show-acceptance", "--out", "a.png", "--stats", "a.json"]
    assert main([*arguments, "--rule", "lantern++:k=5,lam=1"]) == 0
    assert len(resolved) == len(kept) == 1
    assert files(folder) == {"a.png", "a-compare.png", "a-accepted.png", "a.json"}
    statistics = json.loads(Path("a.json").read_text())
    assert statistics["tokens"] == TOKENS and statistics["same_tokens"] == 1 and statistics["speedup"] > 0
    assert set(statistics) >= {
        "step_compression", "rounds", "tokens", "seconds", "compile_seconds", "tokens_per_second", "substituted",
        "speedup", "same_tokens",
    }  # fmt: skip
    assert size("a.png") == (SIDE, SIDE), "the clean picture"
    (width, height), (large, _) = size("a-compare.png"), size("a-accepted.png")
    assert width > 2 * SIDE and height > SIDE and large > SIDE
    printed = capsys.readouterr().out
    assert re.match(r"\d+ passes in place of \d+; 100.0% of the tokens are plain decoding's\n", printed)
    assert re.search(r"\d s in place of \d+\.\d\d s on this machine: \d+\.\d\d times as fast\n", printed)
    assert printed.endswith("\nwrote a.png, a-compare.png, a-accepted.png, a.json\n")
    assert "plain" in printed


def test_several_pictures_into_a_folder_or_a_grid(folder):
    prompts = [PROMPT, "a foggy forest"]
    assert main(["generate", *prompts, "--out", "many/"]) == 0
    expected = {"many", "many/00-snowy-mountains-at-dusk-by-a-calm-lake.png", "many/01-a-foggy-forest.png"}
    assert files(folder) == expected | {"many/grid.png"}
    assert size("many/01-a-foggy-forest.png") == (SIDE, SIDE)
    assert size("many/grid.png") == (2 * SIDE + 4, SIDE)
    assert main(["generate", *prompts, "--out", "grid.png"]) == 0
    assert Path("grid.png").read_bytes() == Path("many/grid.png").read_bytes()
    assert main(["generate", *prompts, "--out", "many"]) == 2
    assert main(["generate", *prompts, "--out", "many", "--overwrite"]) == 0


def test_first_numbers_the_pictures(folder):
    """File names have the numbers too, so that calls do not overwrite each other's pictures."""
    draw = ["generate", "a lake", "--seed", "4", "--out", "many/", "--first"]
    assert main([*draw, "998", "--num", "3"]) == 0
    names = ["0998-a-lake.png", "0999-a-lake.png", "1000-a-lake.png"]
    assert {path.name for path in Path("many").iterdir()} == {*names, "grid.png"}
    assert len({Path("many", name).read_bytes() for name in names}) == 3
    assert main([*draw, "2"]) == 0
    assert main([*draw, "2"]) == 2, "picture 2 is there"
    assert main([*draw, "3"]) == 0


def test_encoded_prompts_are_drawn(folder):
    assert main(["encode", PROMPT, "--model", "demo", "--dtype", "float32", "--out", "a.npz"]) == 0
    assert main(["generate", "--prompts", "a.npz", "--out", "b.png"]) == 0
    with Image.open("b.png") as image:
        np.testing.assert_array_equal(np.asarray(image), tiny_pipeline().generate(PROMPT).pictures[0])


def test_a_checkpoint_directory(folder, tiny_folder, capsys):
    assert main(["generate", PROMPT, "--model", str(tiny_folder), "--tuned", "off", "--out", "a.png"]) == 0
    assert main(["generate", PROMPT, "--out", "b.png"]) == 0
    assert Path("a.png").read_bytes() == Path("b.png").read_bytes()
    capsys.readouterr()
    assert main(["info", str(tiny_folder)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) <= 16 and all(len(line) <= 80 for line in printed)
    for entry in (
        f"{SIDE}x{SIDE} pixels, {TOKENS} tokens",
        "mountains",
        "guidance 2.0",
        "eagle",
        "--verbose",
    ):
        assert any(entry in line for line in printed), entry
    assert main(["info", str(tiny_folder), "--verbose"]) == 0
    printed = capsys.readouterr().out
    described = json.loads(printed)
    assert (described["model"], described["tokens"], described["defaults"]["guidance"]) == (
        "tiny",
        TOKENS,
        2.0,
    )
    assert "mountains" in printed and f'"codebook_size": {CODES}' in printed


GENERATE = {
    "unknown word": ["a purple mountain", "--strict-words"], "no word that is known": ["a purple cat"],
    "no prompt": None, "temperature nan": [PROMPT, "--temperature", "nan"],
    "k beyond the stored": [PROMPT, "--rule", f"lantern++:k={NEIGHBOURS + 1}"],
    "numbers end": [PROMPT, "--first", str(2**32 - 2), "--num", "3"],
    "num without end": [PROMPT, "--num", "100000000", "--out", "many/"],
    "grid of too many": [PROMPT, "--num", "257", "--out", "a.png"], "out exists": [PROMPT, "--out", "old.png"],
    "out is a jpeg": [PROMPT, "--out", "a.jpg"], "out is a folder of that name": [PROMPT, "--out", "a.png/b.png"],
    "out without parent": [PROMPT, "--out", "nowhere/a.png"],
    "stats exists": [PROMPT, "--out", "a.png", "--stats", "old.png"],
    "stats is the picture": [PROMPT, "--out", "a.png", "--stats", "./a.png"],
    "model empty": [PROMPT, "--model", "empty"], "model foreign": [PROMPT, "--model", "foreign"],
    "picture of a folder exists": [PROMPT, "--out", "drawn/"],
}  # fmt: skip


@pytest.fixture
def clutter(folder):
    (folder / "old.png").write_text("old")
    (folder / "drawn").mkdir()
    (folder / "drawn" / "00-snowy-mountains-at-dusk-by-a-calm-lake.png").write_text("old")
    (folder / "empty").mkdir()
    (folder / "foreign").mkdir()
    (folder / "foreign" / "config.json").write_text('{"architectures": ["Other"]}')
    return folder


@pytest.mark.parametrize("bad", GENERATE.values(), ids=GENERATE)
def test_generate_refuses(bad, clutter, capsys, monkeypatch):
    monkeypatch.setattr(lantern_jax.engine.compiler, "compile_ahead", must_not_run)
    monkeypatch.setattr(lantern_jax.engine.engine, "run_timed", must_not_run)
    assert_refused(["generate", *(bad or [])], capsys)


def test_other_commands_refuse(clutter, capsys):
    for bad in (["paint"], ["convert", "other"], ["info", "nowhere"], ["info", "empty"]):
        assert_refused(bad, capsys)


def test_errors_quote_little(capsys):
    for long in (letters * 60_000 for letters in ("x", "9 ", "\x1b[2J")):
        for words in (
            ["generate", long],
            ["paint", long],
            ["info", long],
            ["generate", PROMPT, f"--start={long}"],
        ):
            said = assert_refused(words, capsys)
            assert len(said) < 2500 and said[:-1].isprintable(), words[0]


@pytest.mark.parametrize(("place", "error", "said"), [
    ("lantern_jax.io.files.os.replace", OSError(28, "No space left on device"), "No space left"),
    ("lantern_jax.engine.engine.run_timed", RuntimeError("RESOURCE_EXHAUSTED: 99 bytes"), "--batch"),
])  # fmt: skip
def test_a_failed_call_leaves_no_files(place, error, said, capsys, monkeypatch):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(place, fail)
    assert said in assert_refused(["generate", PROMPT, "--out", "many/", "--overwrite"], capsys)


@pytest.mark.parametrize(("given", "taken", "instead"), [
    ([PROMPT, "--out", "a.png", "--stats", "a.json"], "a.png", "a/a.png"),
    ([PROMPT, "--out", "many/", "--stats", "many/a.json"], "many/a.json", "many-2/a.json"),
], ids=["file", "folder"])  # fmt: skip
def test_files_that_others_made_meanwhile_are_kept(given, taken, instead, folder, capsys, monkeypatch):
    run = Plan.run

    def slowly(*arguments):
        Path(taken).parent.mkdir(exist_ok=True)
        Path(taken).write_text("theirs")
        return run(*arguments)

    monkeypatch.setattr(Plan, "run", slowly)
    assert main(["generate", *given]) == 0
    assert Path(taken).read_text() == "theirs" and Path(instead).stat().st_size > 6
    assert not any(name.startswith("many/0") for name in files(folder))
    said = capsys.readouterr()
    assert "was made meanwhile" in said.err and instead.split("/")[0] in said.out


def test_help_is_not_an_error(capsys):
    """No command at all prints help too."""
    assert main(["generate", "--help"]) == main([]) == 0
    help_, commands = re.split("^usage: ", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    assert len(help_.splitlines()) <= 60, "a screen or so"
    assert "examples:" in help_ and "`lantern methods`" in " ".join(help_.split())
    assert all(f"--{name.replace('_', '-')} " in help_ for name in OPTIONS)
    assert "lantern generate" in commands and main(["--version"]) == 0
    assert capsys.readouterr().out == f"lantern_jax {lantern_jax.__version__}\n"


@pytest.mark.parametrize(("words", "said"), [
    ("genrate lake", "'genrate' is not valid: did you mean generate? choose from"),
    ("generate lake --sed 3", "'--sed' is not an option of lantern generate: did you mean --seed?"),
    ("generate lake --method jakobi", "unknown method 'jakobi': did you mean jacobi?"),
    ("generate lake --method led:node=9", "method led has no field 'node': did you mean nodes?"),
    ("generate lake --rule near:tau=-1", "tau -1.0 is not valid: give a finite number >= 0"),
    ("generate lake --nodes 25", "it is a field of methods, write --method led:nodes=..."),
    ("generate lake --tau 1", "it is a field of methods, write --method near:tau=..."),
    ("generate lake --tree=chain", "it is a field of methods, write --method gumbel:tree=..."),
    ("generate lake -n 3", "'-n' is not an option of lantern generate: see lantern generate --help"),
    ("generate lake --seed 3 forest", "does not take 'forest' here: give every PROMPT in one place, before the opt"),
    ("methods jacobi led", "lantern methods does not take 'led': see lantern methods --help"),
    ("convert", "FORMAT is missing: see lantern convert --help"),
    ("convert llamagen", "--out is missing: see lantern convert llamagen --help"),
])  # fmt: skip
def test_errors_suggest_the_nearest_name_or_the_help(words, said, capsys):
    assert said in assert_refused(words.split(), capsys)


def commands_of(parser, words=()) -> dict[tuple[str, ...], Parser]:
    """Returns the parsers of all commands, including those of convert's formats, by the words that call them."""
    subs = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    found = {(*words, name): one for sub in subs for name, one in sub.choices.items()}
    return found | {key: one for words, sub in found.items() for key, one in commands_of(sub, words).items()}


@pytest.mark.parametrize("words", commands_of(make_parser()), ids="-".join)
def test_each_help_is_short_and_its_examples_can_be_parsed(words, capsys):
    """Nothing that a help text suggests is refused."""
    assert main([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: lantern {' '.join(words)}")
    lines = text.splitlines()
    assert len(lines) <= 80 and max(map(len, lines)) <= 80
    for line in lines:
        if line.startswith("  lantern "):
            made = make_parser().parse_args(shlex.split(line)[1:])
            [Method.of(method) for method in vars(made).get("methods") or ()]
    for text in re.findall(r"\w+:\w+=\w+(?:,\w+=\w+)*", " ".join(lines)):
        table = next((table for table in (DRAFTINGS, RULES) if text.split(":")[0] in table), None)
        Method.of(text) if text.split(":")[0] in METHODS else table.read(text)


def test_methods_are_listed_and_explained(capsys):
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS) and max(map(len, lines)) <= 100
    assert all(line.endswith(method.help) for line, method in zip(lines, METHODS.values(), strict=True))
    for name in ("scd", "near", "dynamic"):
        assert main(["methods", name]) == 0
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 100
    for line in (
        "arXiv 2510.24211", "drafting jacobi:window=16|32", "rule strict", "coupling rejection",
        "window=16 (a whole number from 1 to 64; 16 on CPUs, 32 elsewhere)", "tau=1.5 (a finite number >= 0)",
        "nodes=16 (a whole number from 1 to 4096; 16 on CPUs, 58 on GPUs, 26 on TPUs)",
    ):  # fmt: skip
        assert line in told, line


def test_help_and_a_misspelt_method_need_no_jax():
    code = (
        "import sys; from lantern_jax.apps.commands.main import main; assert main(['methods']) == 0;"
        "assert main('generate lake --method lod'.split()) == 2; assert main(['--help']) == 0;"
        "assert not {'jax', 'flax', 'scipy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_file_names_come_from_prompts():
    plan = outputs.plan_pictures("many/", ["A lake!", "??", "x" * 99])
    assert [path.name for path in plan.pictures] == ["00-a-lake.png", "01-picture.png", f"02-{'x' * 40}.png"]
    assert plan.more == {"grid": Path("many/grid.png")}
    assert outputs.plan_pictures("one.png", ["a"]).pictures == (Path("one.png"),)
    assert outputs.plan_pictures("one.png", ["a", "b"]).more == {"grid": Path("one.png")}
