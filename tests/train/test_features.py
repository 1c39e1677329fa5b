"""Extraction of features: from pictures, captions and samples, killed and continued."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lantern_jax
from lantern_jax.checkpoints.store import load_text_encoder
from lantern_jax.families.registry import family_of
from tests.cases import exhaustive
from tests.command import files, must_not_run
from tests.refused import refused_each
from tests.tiny_checkpoint import tiny_checkpoint
from tests.train.families import (
    BATCH,
    CAPTIONS,
    CLASS_PROMPTS,
    FLOAT32,
    PROMPTS,
    extract,
    retrained,
)
from train import features, sources, target
from train.claims import claim, parameters_digest
from train.encode import encode_pictures
from train.feature_store import FeatureStore
from train.picture_folder import PictureFolder

pytest.importorskip("torch")
pytest.importorskip("tokenizers")


# Labels: test_kinds.py; guided families: test_guided_drafters.py.
def test_features_match_decoding_step_by_step(extracted, pictures):
    """From captions of different lengths, with forced row ends."""
    model, workdir = extracted("lumina")
    checkpoint, store = target.read_target(model), FeatureStore(workdir)
    config, params = checkpoint.target_config, checkpoint.target_params
    record = family_of(config).target(config, FLOAT32)
    assert len(store) == 8
    stored, prefix, tokens = store.read([1, 6])
    texts = [CAPTIONS[1], PROMPTS[1]]
    pipeline = lantern_jax.load(model)
    conditioning = jax.tree.map(lambda leaf: leaf[np.arange(2)], pipeline._encoder.encode(texts, np.float32))
    prefill = jax.jit(record.prefill, static_argnums=3)
    cache, _, seen = prefill(params, conditioning, jnp.ones(2), config.num_tokens)
    node = jnp.zeros(1, jnp.int32), np.ones((1, 1), bool)

    @jax.jit
    def step(cache, token):
        _, one, block = record.score(params, cache, token, *node)
        return record.commit(cache, block, jnp.zeros((2, 1), jnp.int32), jnp.ones(2, jnp.int32)), one

    # All captions are padded to the length of the longest.
    more = prefix.shape[-1] - seen.mask.shape[-1]
    assert (prefix[..., :more] < 0).all()
    stored, prefix = stored[:, :, more:], prefix[..., more:]
    made = [seen.features]
    for position in range(config.num_tokens - 1):
        cache, one = step(cache, jnp.asarray(tokens[:, position : position + 1]))
        made.append(one)
    expected = np.swapaxes(np.concatenate(made, axis=2), 0, 1)
    assert stored.shape == expected.shape
    assert np.abs(stored).mean() > 0.1
    valid = np.pad(prefix >= 0, ((0, 0), (0, 0), (0, config.num_tokens - 1)), constant_values=True)
    np.testing.assert_array_equal(prefix >= 0, np.swapaxes(np.asarray(seen.mask), 0, 1))
    there = np.swapaxes(np.where(seen.mask, seen.tokens, 0), 0, 1)
    np.testing.assert_array_equal(np.where(prefix >= 0, prefix, 0), there)
    np.testing.assert_allclose(stored[valid], expected[valid], atol=3e-3)
    assert not (prefix >= 0).all()
    free = record.forced < 0
    np.testing.assert_array_equal(tokens[:, ~free], np.stack([record.forced[~free]] * 2))
    vq = checkpoint.tokenizer_config, checkpoint.tokenizer_params
    codes = encode_pictures(*vq, PictureFolder(pictures("lumina"), 4 * vq[0].downsampling).load([0, 1]))
    np.testing.assert_array_equal(tokens[0, free], codes[1])


class Killed(BaseException):
    pass


# The function that writes a stage's files -> its module and the pattern of their names.
STAGES = {
    "save_encoded": (sources, "captions/captions_*.npz"), "write_array": (sources, "codes/codes_*.npy"),
    "write_shard": (features, "features_*.npy"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::lantern_jax.IgnoredWords")
@pytest.mark.parametrize(
    "stage",
    [name if name == "write_shard" else exhaustive(name) for name in STAGES],
)
def test_killed_extraction_resumes_after_its_last_file(stage, pictures, extracted, tmp_path, monkeypatch):
    """The second file of a stage never appears; the next call makes what is missing and nothing twice."""
    # All families write shards with the same code, and classes compile sooner.
    name = "c2i" if stage == "write_shard" else "t2i"
    model, whole = extracted(name)
    run, (module, pattern), calls = tmp_path / "run", STAGES[stage], []
    work = getattr(module, stage)

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise Killed
        return work(*arguments)

    monkeypatch.setattr(module, stage, killed)
    folder = pictures(name)
    with pytest.raises(Killed):
        extract(model, name, folder, run)
    assert len(list(run.glob(pattern))) == 1
    assert extract(model, name, folder, run).text_encoder_params is None
    assert files(run) == files(whole)
    assert len(list(run.glob(pattern))) == len(calls) - 1 > 1
    for file in run.rglob("*.npy"):
        assert file.read_bytes() == (whole / file.relative_to(run)).read_bytes(), file


def test_wordnet_folders_are_classes_in_their_order():
    names = [f"n{number:08}" for number in range(2000, 1000, -1)]
    assert sources.class_numbers(names)[:2] == ["999", "998"]
    assert sources.class_numbers(names[1:]) == names[1:]


def test_what_cannot_be_extracted_is_named(converted, pictures, tmp_path):
    checkpoint = target.read_target(converted("c2i"))
    (tmp_path / "empty.txt").write_text("\n")
    record = family_of(checkpoint.target_config).target(checkpoint.target_config, FLOAT32)
    claim(tmp_path / "work", {"pictures": "a"})
    refused_each({
        "give --folder, --prompts or both": lambda: sources.prompted(checkpoint, tmp_path),
        "'Snow, and a dog in it' is not a class": lambda: sources.prompted(checkpoint, tmp_path, pictures("t2i")),
        "is not a file: give a text file of prompts": lambda: sources.read_prompts(tmp_path / "none.txt"),
        "is empty: give prompts": lambda: sources.read_prompts(tmp_path / "empty.txt"),
        "expected 16 per picture below 64": lambda: features.streams(record, np.zeros((2, 9), np.int32)),
        "holds work on another pictures: name another --workdir": (
            lambda: claim(tmp_path / "work", {"pictures": "b"})
        ),
    })  # fmt: skip


def test_options_are_checked_before_anything_is_encoded(tmp_path, monkeypatch):
    monkeypatch.setattr(target, "read_target", lambda *_: tiny_checkpoint())
    monkeypatch.setattr(features, "sources_of", must_not_run)

    def extracts(*words):
        return lambda: features.main([f"--target={tmp_path}", f"--workdir={tmp_path / 'work'}", *words])

    (tmp_path / "prompts.txt").write_text("a lake\n")
    prompts, pictures = f"--prompts={tmp_path / 'prompts.txt'}", f"--folder={tmp_path}"
    refused_each({
        r"taps \(1, 0\) do not end with the final features": extracts(prompts, "--taps=1,0"),
        "taps .*: expected layers from 0": extracts(prompts, "--taps=99,1"),
        "batch_size 3 does not divide over 2": extracts(prompts, "--batch_size=3", "--mesh=data=2"),
        "--samples counts those of --prompts: give": extracts(pictures, "--samples=3"),
        "--pictures counts those of --folder: give": extracts(prompts, "--pictures=3"),
    })  # fmt: skip
    assert not (tmp_path / "work").exists()


def guided(checkpoint):
    return dataclasses.replace(checkpoint, defaults={"guidance": 2.0})


@pytest.mark.parametrize(("alter", "change", "what"), [
    (retrained, {}, "weights"), (None, {"seed": 2}, "settings"), (guided, {}, "settings"),
    (None, {"dtype": jnp.bfloat16}, "dtype"), (None, {"samples": 4}, "samples"),
], ids=["weights", "seed", "guidance", "dtype", "samples"])  # fmt: skip
def test_features_of_other_weights_or_settings_are_not_continued(alter, change, what, extracted, pictures):
    model, workdir = extracted("c2i")
    before = files(workdir)
    checkpoint = target.read_target(model)
    checkpoint = alter(checkpoint) if alter else checkpoint
    options = {"seed": 1, "dtype": np.float32, "samples": 3} | change
    samples = options.pop("samples")
    with pytest.raises(ValueError, match=f"holds work on another .*{what}"):
        made = sources.prompted(checkpoint, workdir, pictures("c2i"), CLASS_PROMPTS, samples=samples, seed=1)
        features.extract(checkpoint, made, workdir, batch_size=BATCH, **options)
    assert files(workdir) == before


def test_another_batch_size_gives_every_row_once(extracted, pictures, tmp_path, monkeypatch):
    """Five pictures and three samples in shards of four, the first one made in batches of two, the rest of three."""
    monkeypatch.setattr(features, "SHARD", 4)
    model, done = extracted("c2i")
    checkpoint, workdir = target.read_target(model), tmp_path / "features"
    made = sources.prompted(checkpoint, workdir, pictures("c2i"), CLASS_PROMPTS, samples=3, seed=1)
    write, calls = features.write_shard, []

    def killed(*arguments):
        if calls:
            raise Killed
        calls.append(write(*arguments))

    monkeypatch.setattr(features, "write_shard", killed)
    with pytest.raises(Killed):
        features.extract(checkpoint, made, workdir, seed=1, batch_size=2)
    monkeypatch.setattr(features, "write_shard", write)
    features.extract(checkpoint, made, workdir, seed=1, batch_size=3)
    assert len(FeatureStore(workdir)) == 8
    expected, found = (FeatureStore(folder).read(np.arange(8)) for folder in (done, workdir))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.astype(np.float32), theirs.astype(np.float32), atol=2e-3)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::lantern_jax.IgnoredWords")
def test_codes_and_captions_of_other_weights_are_not_reused(pictures, converted, tmp_path):
    checkpoint, given = target.read_target(converted("t2i")), (tmp_path, pictures("t2i"), PROMPTS)
    sources.prompted(checkpoint, *given, samples=3, seed=1)
    vq = jax.tree.map(lambda leaf: leaf + 1e-3, checkpoint.tokenizer_params)
    t5 = jax.tree.map(lambda leaf: leaf + 1e-3, load_text_encoder(checkpoint, np.float32))
    for change, folder in (({"tokenizer_params": vq}, "codes"), ({"text_encoder_params": t5}, "captions")):
        other = dataclasses.replace(checkpoint, **change)
        with pytest.raises(ValueError, match=f"{folder} holds work on another (tokenizer|text encoder)"):
            sources.prompted(other, *given, samples=3, seed=1)


def test_a_digest_covers_names_values_and_dtype():
    params = {"a": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3), "b": {"c": np.ones((), np.float32)}}
    digest = parameters_digest(params)
    assert digest == parameters_digest(jax.tree.map(jnp.asarray, params))
    assert digest == parameters_digest(params | {"a": params["a"].reshape(3, 2)})
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    assert parameters_digest(half) == parameters_digest(params, "bfloat16") != digest
    changed = params | {"a": np.nextafter(params["a"], np.float32(2))}
    assert parameters_digest(changed) != digest
    assert parameters_digest({"b": params["b"], "d": params["a"]}) != digest
