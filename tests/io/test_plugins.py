"""A package beside ours that brings a rule, a drafting, a kind of drafter, a family and a metric."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import lantern_jax
from lantern_jax.apps.commands.main import main
from lantern_jax.apps.serve.access import Access
from lantern_jax.apps.serve.application import application
from lantern_jax.checkpoints.store import save
from lantern_jax.decoding.acceptance import as_rule
from lantern_jax.io import plugins
from tests.fixtures import guided_layouts, guided_shapes, tensor_writing
from tests.fixtures import published_layouts as layouts
from tests.refused import refused
from tests.tiny_checkpoint import tiny_checkpoint

PACKAGE = Path(__file__).resolve().parents[1] / "fixtures" / "plugin"
BROKEN = "[lantern_jax.rules]\ncrow = lantern_nothing:Crow\n"


@pytest.fixture
def forgotten():
    """Entry points are read again, and what they name is forgotten afterwards."""
    forget()
    yield
    forget()


def forget():
    for table in plugins._tables:
        vars(table).pop("theirs", None)


@pytest.fixture
def package(forgotten, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(PACKAGE)
    monkeypatch.chdir(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("lantern_owl")]:
        del sys.modules[name]


def test_the_command_knows_rule_drafting_and_score_by_name(package, capsys):
    save("own", tiny_checkpoint())
    generate = ["generate", "a lake", "--model", "own", "--batch", "1"]
    rule = ["--rule", "owl:hoot=0.25", "--drafting", "owl-window:eyes=3"]
    assert main([*generate, *rule, "--out", "rule.png", "--stats", "rule.json"]) == 0, capsys.readouterr().err
    made = json.loads(Path("rule.json").read_text())
    assert made["substituted"] > 0, made
    Path("pictures").mkdir()
    for number in range(2):
        Image.new("RGB", (16, 16)).save(f"pictures/{number}.png")
    Path("prompts.txt").write_text("a lake\na lake\n")
    words = ["metrics", "pictures", "--scores", "owls", "--prompts", "prompts.txt", "--out", "owls.json"]
    assert main(words) == 0, capsys.readouterr().err
    assert json.loads(Path("owls.json").read_text())["scores"][0]["mean"] == 0


def test_a_toy_drafter_is_one_file_and_one_line(package):
    """As docs/architecture.md shows it."""
    from lantern_owl.drafter import TableConfig

    old = tiny_checkpoint()
    codes = old.target_config.num_codes
    table = np.random.default_rng(0).normal(size=(codes, codes)).astype(np.float32)
    drafters = {"owl-drafter": (TableConfig(codes), {"params": {"table": table}})}
    save("own", dataclasses.replace(old, drafters=drafters))
    pipeline = lantern_jax.load("own")
    plain = pipeline.generate("a lake", method="ar", seed=3)
    for tree in ("gumbel:drafter=owl-drafter,tree=chain", "gumbel:drafter=owl-drafter,tree=mc_sim_7b_63"):
        drafted = pipeline.generate("a lake", method=tree, seed=3)
        assert (drafted.tokens == plain.tokens).all() and drafted.statistics.rounds < plain.statistics.rounds


def test_a_toy_family_is_one_file_and_one_line(package, capsys):
    """As docs/architecture.md shows it: published files become a checkpoint that draws."""
    pytest.importorskip("tokenizers")
    from lantern_owl.family import OwlConfig

    special, grid = ("<s>", "<picture>"), {"grid": 4, "num_codes": 64}
    guided_layouts.write_byte_level(Path("tokenizer.json"), special, size=300)
    config = OwlConfig(32, 2, 2, 48, 364, **grid)
    shapes = guided_shapes.llama_shapes(config, "model.", 364) | guided_shapes.linear("lm_head", 364, 32)
    settings = guided_shapes.llama_settings(config, 364, model_type="owl")
    tensor_writing.write_folder(Path("model"), shapes, np.float32, settings=settings)
    layouts.write_vq(Path("vq.pt"), layouts.TINY_VQ)
    files = ["--model", "model", "--text-tokenizer", "tokenizer.json", "--vq", "vq.pt", "--dtype", "float32"]
    assert main(["convert", "owl", *files, "--config", json.dumps(grid), "--out", "own"]) == 0, (
        capsys.readouterr().err
    )
    assert json.loads(Path("own/config.json").read_text())["family"] == "owl"
    pipeline = lantern_jax.load("own")
    assert pipeline.checkpoint.target_config == config
    plain, drafted = (pipeline.generate("a lake", method=method, seed=3) for method in ("ar", "jacobi"))
    assert (drafted.tokens == plain.tokens).all() and plain.pictures.shape == (1, 8, 8, 3)


def test_the_docs_show_the_toys():
    page = (PACKAGE.parents[2] / "docs" / "architecture.md").read_text("utf-8")
    for name in ("drafter", "family"):
        assert f"```python\n{(PACKAGE / 'lantern_owl' / f'{name}.py').read_text('utf-8')}```" in page


@pytest.mark.slow
def test_python_server_and_bench_take_rule_and_drafting_by_text(package, capsys):
    save("own", tiny_checkpoint())
    pipeline, asked = lantern_jax.load("own"), {"rule": "owl:hoot=0.25", "drafting": "owl-window:eyes=3"}
    by_text = pipeline.generate("a lake", **asked)
    kinds = sys.modules["lantern_owl.kinds"]
    by_value = pipeline.generate("a lake", rule=kinds.Owl(0.25), drafting=kinds.OwlWindow(3))
    assert (by_text.tokens == by_value.tokens).all() and by_text.settings == by_value.settings
    assert by_text.settings["rule"] == asked["rule"] and by_text.settings["drafting"] == asked["drafting"]
    with TestClient(application(pipeline, "own", Access())) as client:
        body = {"prompt": "a lake", "seed": 0, "details": True, **asked}
        answer = client.post("/v1/images/generations", json=body).json()
        assert answer["data"][0]["lantern"]["codes"] == by_text.tokens[0].tolist()
        refused = client.post("/v1/images/generations", json={**body, "rule": "owl:hoot=2"})
        assert refused.status_code == 422 and "a number in [0, 1]" in refused.text
    bench = [
        "bench",
        "--model",
        "own",
        "--methods",
        "jacobi:nodes=2",
        "--rules",
        "owl:hoot=1",
        "--pictures",
        "1",
    ]
    assert main([*bench, "--out", "rows.jsonl"]) == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert rows[1]["options"] == {"rule": "owl:hoot=1"}


def test_errors_and_help_show_what_other_packages_bring(package, capsys):
    for line, status, said in (
        ("generate lake --rule crow", 2, "owl"),
        ("generate lake --rule owl:hoot=2", 2, "hoot 2.0 is not valid: give a number in [0, 1]"),
        ("methods owl", 0, "how loudly owl accepts"),
    ):
        assert main(line.split()) == status and said in capsys.readouterr()[status // 2]


def test_a_broken_package_is_a_one_line_error(forgotten, monkeypatch, tmp_path, capsys):
    info = tmp_path / "lantern_crow-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lantern-crow\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["generate", "a lake", "--rule", "crow"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "the plug-in package lantern-crow failed (ModuleNotFoundError" in said
    with refused("the plug-in package lantern-crow failed"):
        as_rule("crow")


def test_known_names_do_not_read_entry_points(package):
    assert as_rule("near").k == 1 and main(["methods"]) == 0
    assert not plugins.registered() and "lantern_owl" not in sys.modules
