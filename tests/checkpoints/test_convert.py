"""Converting published files to a checkpoint directory, by the library and by ``lantern convert llamagen``."""

import dataclasses
import json
import pickle
import re
import shutil
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from PIL import Image

from lantern_jax.apps.commands.main import main
from lantern_jax.apps.convert import convert as conversion
from lantern_jax.apps.convert.conversion import check_codes
from lantern_jax.apps.convert.formats import convert
from lantern_jax.apps.foreign.tensor_files import open_tensors
from lantern_jax.apps.terminal.locks import sole
from lantern_jax.checkpoints import store
from lantern_jax.checkpoints.store import load, load_shapes, save
from lantern_jax.drafters.eagle_weights import convert_drafter
from lantern_jax.families.llamagen.weights import convert_gpt, convert_vq
from lantern_jax.io.errors import Assumed
from lantern_jax.models.vq import VQConfig
from lantern_jax.tensors.stored_tensor import StoredTensor
from tests.command import assert_refused, must_not_run
from tests.published_files import DRAFTER, GPT, VQ
from tests.refused import refused
from tests.tiny_checkpoint import tiny_checkpoint


def same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def tensors_of(path):
    return {name: np.asarray(tensor) for name, tensor in open_tensors(path).items()}


def test_whole_conversion(published, tmp_path):
    back = load(convert("llamagen", **published, out=tmp_path / "new", dtype="float32", neighbours=9))
    assert (back.target_config, back.drafters["eagle"][0], back.tokenizer_config) == (GPT, DRAFTER, VQ)
    vq = tensors_of(published["vq"])
    same(back.target_params, convert_gpt(tensors_of(published["gpt"]), GPT)[1])
    same(back.drafters["eagle"][1], convert_drafter(tensors_of(published["drafter"]), DRAFTER)[1])
    same(back.tokenizer_params["params"], convert_vq(vq)[1])
    codes = vq["quantize.embedding.weight"]
    codes = codes / np.linalg.norm(codes, axis=1, keepdims=True)
    np.testing.assert_allclose(back.codebook.codes, codes, rtol=1e-6)
    same(back.codebook.neighbours, nearest(codes, 9))
    assert back.defaults["guidance"] == 4.0 and back.defaults["top_k"] == GPT.vocab_size
    assert back.metadata["converted_from"] == {"gpt": "gpt.pt", "vq": "vq.pt", "drafter": "drafter"}


def nearest(codes, k):
    distance = ((codes[:, None] - codes[None]) ** 2).sum(axis=-1)
    np.fill_diagonal(distance, np.inf)
    return np.argsort(distance, axis=1, kind="stable")[:, :k]


def test_raw_neighbours_and_settings_by_part(published, tmp_path):
    config = tmp_path / "parts.json"
    config.write_text(json.dumps({"target": {"num_heads": 2, "grid": 4}, "drafter": {"num_heads": 2}}))
    given = published | {"config": config, "neighbour_space": "raw"}
    back = load(convert("llamagen", **given, out=tmp_path / "new"))
    codes = tensors_of(published["vq"])["quantize.embedding.weight"]
    same(back.codebook.neighbours, nearest(codes, GPT.vocab_size - 1))
    np.testing.assert_allclose(np.linalg.norm(back.codebook.codes, axis=1), 1, rtol=1e-6)
    assert back.drafters["eagle"][0].num_heads == 2


def test_gpt_alone_is_stored_in_bfloat16(published, tmp_path):
    back = load(convert("llamagen", gpt=published["gpt"], config=published["config"], out=tmp_path / "new"))
    assert back.tokenizer_params is None and back.codebook is None and back.drafters == {}
    embedding = back.target_params["params"]["tokens"]["embedding"]
    given = tensors_of(published["gpt"])["tok_embeddings.weight"]
    np.testing.assert_array_equal(embedding, given.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_a_targets_arrays_are_read_as_they_are_written(published, tmp_path, monkeypatch):
    """A model of 34B parameters would not fit into most machines' memory."""
    written = []
    monkeypatch.setattr(
        conversion, "save", lambda *given, **how: written.append(given[1]) or save(*given, **how)
    )
    convert("llamagen", gpt=published["gpt"], config=published["config"], out=tmp_path / "new")
    assert all(isinstance(leaf, StoredTensor) for leaf in jax.tree.leaves(written[0].target_params))


def test_a_config_beside_a_safetensors_file_belongs_to_it(published, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file(tensors_of(published["gpt"]), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 2, "block_size": 16}))
    back = load_shapes(convert("llamagen", gpt=tmp_path / "model.safetensors", out=tmp_path / "new"))
    assert back.target_config == GPT


def test_replacing_a_drafter_drops_what_was_measured_with_it(published, tmp_path):
    old = load(convert("llamagen", **published, out=tmp_path / "old"), None)
    told = {
        "drafters": {"eagle": {"steps": 9}},
        "tokens_per_pass": {"jacobi:nodes=16": 2.3, "led:nodes=16,refine=3": 2.0},
    }
    old = dataclasses.replace(old, defaults=old.defaults | {"sharpness": 1.4}, metadata=old.metadata | told)
    save(tmp_path / "old", old, overwrite=True)
    back = load(conversion.add_parts(tmp_path / "old", drafter=published["drafter"], out=tmp_path / "new"))
    assert "sharpness" not in back.defaults and "drafters" not in back.metadata
    assert back.metadata["tokens_per_pass"] == {"jacobi:nodes=16": 2.3}


def test_adding_a_drafter_holds_no_other_part(published, tmp_path, monkeypatch):
    old = convert("llamagen", **published, out=tmp_path / "old")
    whole = load(old, None)
    monkeypatch.setattr(store, "read_arrays", must_not_run)
    conversion.add_parts(old, drafter=published["drafter"], out=tmp_path / "new")
    monkeypatch.undo()
    back = load(tmp_path / "new", None)
    same(back.target_params, whole.target_params)
    same((back.tokenizer_params, back.codebook), (whole.tokenizer_params, whole.codebook))


@pytest.fixture
def folder(published, tmp_path, monkeypatch) -> Path:
    """A copy of the published files, as the current folder."""
    monkeypatch.chdir(shutil.copytree(published["gpt"].parent, tmp_path / "work"))
    return tmp_path / "work"


def command(**changes) -> list[str]:
    """Returns the words of a conversion that works, with ``changes``; None leaves an option out."""
    options = {"gpt": "gpt.pt", "vq": "vq.pt", "drafter": "drafter", "config": "settings.json", "out": "new"}
    given = [(name, value) for name, value in (options | changes).items() if value is not None]
    return ["convert", "llamagen", *(word for name, value in given for word in (f"--{name}", value))]


def test_published_files_become_pictures(folder, tmp_path, monkeypatch, capsys):
    out = str(tmp_path / "models" / "new")
    assert main(command(out=out)) == 0
    assert main(["info", out]) == 0
    printed = capsys.readouterr().out
    assert "LlamaGen, class-conditional" in printed and "drafter" in printed
    (tmp_path / "tree.json").write_text("[[0], [1], [0, 0]]")
    monkeypatch.chdir(tmp_path)
    generate = ["generate", "3", "--model", out, "--method", "gumbel:tree=tree.json", "--mesh", "data=1"]
    assert main([*generate, "--out", "a.png", "--stats", "a.json"]) == 0
    assert json.loads(Path("a.json").read_text())["tokens"] == GPT.num_tokens
    with Image.open("a.png") as image:
        assert np.asarray(image).std() > 1
    capsys.readouterr()
    for prompt, line in (("5", "give a class number from 0 to 4"), ("", "is not a class")):
        assert line in assert_refused(["generate", prompt, "--model", out], capsys)


@pytest.mark.filterwarnings("default::lantern_jax.io.errors.Assumed")
@pytest.mark.parametrize(("name", "config", "said", "drawn"), [
    ("gpt.pt", '{"num_heads": 2, "grid": 4}', "", "8x8 pixels, 4 x 4 codes, 16 tokens, 0.0M parameters; sizes from the "
     "tensors, grid from --config"),
    ("c2i_L_384.pt", '{"num_heads": 2}', "", "48x48 pixels, 24 x 24 codes, 576 tokens, .* grid from the name c2i_L"),
    ("t2i_XL_stage2_512.pt", '{"num_heads": 2}', "", "64x64 pixels, 32 x 32 codes, 1024 tokens, .* grid from the name"),
    ("gpt.pt", '{"num_heads": 2}', """grid 16 assumed: pictures have 256 tokens; --config '{"grid": 32}' for 512 px""",
     "32x32 pixels, 16 x 16 codes, 256 tokens, .* grid assumed"),
])  # fmt: skip
def test_the_last_line_says_what_will_be_drawn(name, config, said, drawn, folder, capsys):
    if name != "gpt.pt":
        shutil.move("gpt.pt", name)
    assert main(command(gpt=name, drafter=None, config=config)) == 0
    printed = capsys.readouterr()
    assert printed.err == (f"lantern: {said}\n" if said else "")
    wrote, last = printed.out.splitlines()
    assert wrote == "wrote new" and re.fullmatch(f"LlamaGen, class-conditional: {drawn}.*", last)


def test_a_tokenizer_of_another_size_is_noticed():
    published = VQConfig()
    with pytest.warns(Assumed, match="draws a code in 8 px, the published one in 16: is it this model's"):
        check_codes(GPT, dataclasses.replace(published, ch_mult=(1, 2, 2, 4)))
    check_codes(GPT, published)
    check_codes(GPT, VQ)


class Evil:
    def __reduce__(self):
        return (open, ("pwned", "w"))


# Changed options, or the text of settings.json. More files of another part and wrong settings: test_wrong_tensors.py.
@pytest.mark.parametrize(("change", "match"), [
    ({"gpt": "missing.safetensors"}, "is not a file"), ({"gpt": "vq.pt"}, "not a LlamaGen GPT"),
    ({"drafter": "evil.pt"}, "evil.pt is truncated or not a"), ({"drafter": "gpt.pt"}, "not a LANTERN drafter"),
    ({"vq": "gpt.pt"}, "not a LlamaGen VQ tokenizer"), ({"out": "settings.json"}, "settings.json"),
    ({"t5": "vq.pt"}, "give both --t5 and"), ({"t5-tokenizer": "settings.json"}, "give both --t5 and"),
    ({"out": "there"}, "there exists"), ({"out": "settings.json/new"}, "settings.json"),
    ({"out": "/proc/new"}, "cannot write into /proc"),
    ({"config": "gpt.pt"}, "is not JSON"), ({"config": None}, "number of heads"), ("[2]", "holds no JSON object"),
    ('{"target": {"num_heads": 2}, "wings": {}}', "unknown parts wings"),
    ('{"num_heads": 2, "block_size": -4}', "grid -4 is not valid"),
    ('{"target": 5}', "settings.json: target is 5: give an object of settings"),
])  # fmt: skip
def test_what_cannot_be_converted_is_refused_before_any_work(change, match, folder, capsys, monkeypatch):
    for name in ("make_codebook", "save"):
        monkeypatch.setattr(conversion, name, must_not_run)
    monkeypatch.setattr("lantern_jax.families.llamagen.weights.read_model", must_not_run)
    (folder / "there").mkdir()
    (folder / "evil.pt").write_bytes(pickle.dumps({"model": Evil()}, protocol=2))
    if isinstance(change, str):
        Path("settings.json").write_text(change)
    assert match in assert_refused(command(**{} if isinstance(change, str) else change), capsys)


def test_a_text_encoder_is_refused_before_a_target_without_captions_is_read(published, tmp_path, monkeypatch):
    old = save(tmp_path / "old", tiny_checkpoint())
    monkeypatch.setattr(store, "read_arrays", must_not_run)
    with refused("the target is not caption-conditional"):
        conversion.add_parts(old, t5=published["vq"], t5_tokenizer=published["config"], out=tmp_path / "new")


def test_a_second_conversion_into_a_folder_is_refused(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(conversion, "open_part", must_not_run)
    with sole(tmp_path / "new"):
        assert "another process writes " in assert_refused(command(out=str(tmp_path / "new")), capsys)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"neighbour_space": "l1"}, "neighbour space"),
        ({"neighbours": -1}, "-1 neighbours"),
        *(
            ({"dtype": dtype}, "dtype .* is not valid: give one")
            for dtype in (None, "int8", np.float64, "owl")
        ),
    ],
)
def test_wrong_options(published, options, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        convert("llamagen", **published, out=tmp_path / "new", **options)
    with pytest.raises(ValueError, match="exists"):
        convert("llamagen", **published, out=tmp_path)
