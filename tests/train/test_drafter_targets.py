"""Drafters for every family of targets: from pictures, captions and samples to a checkpoint that drafts."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import lantern_jax
from configs import anole_drafter, llamagen_c2i_drafter, llamagen_t2i_drafter, lumina_drafter
from lantern_jax.checkpoints.convert import convert_chameleon_files, convert_llamagen
from lantern_jax.families.registry import family_of
from lantern_jax.models.chameleon import ChameleonConfig
from lantern_jax.models.drafter import DrafterModel, eagle_drafter
from lantern_jax.models.llamagen import published_config
from tests.command import files
from tests.fixtures import published_layouts as layouts
from train import chains, drafter, export, features, sources, target
from train.encode import encode_pictures
from train.feature_store import FeatureStore
from train.picture_folder import PictureFolder

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

CAPTIONS = ["Snow, and a dog in it", "a lake", "the cat", "a lake at dusk", "a dog"]
PROMPTS = ["the lake", "a cat in the snow"]
CLASSES, CLASS_PROMPTS = ["3", "0", "4", "1", "3"], ["2", "0"]
CONFIGS = {
    "c2i": llamagen_c2i_drafter, "t2i": llamagen_t2i_drafter, "anole": anole_drafter, "lumina": lumina_drafter,
}  # fmt: skip


def families(*few):
    """All, those exhaustive that are not named."""
    cases = [pytest.param(name, marks=() if name in few else pytest.mark.exhaustive) for name in CONFIGS]
    return pytest.mark.parametrize("name", cases)


FLOAT32 = jnp.dtype(jnp.float32)
BATCH, SHARD = 2, 2
TREE = [[0], [1], [0, 0], [0, 1]]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(features, "SHARD", SHARD)
    monkeypatch.setattr(sources, "CACHED", 3)
    monkeypatch.setattr(sources, "ENCODED", 2)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """name -> a tiny checkpoint directory, as `lantern convert` writes it, without a drafter."""
    folder, made = tmp_path_factory.mktemp("published"), {}
    (folder / "sizes.json").write_text(json.dumps({"num_heads": 2, "grid": 4}))
    (folder / "grid.json").write_text(json.dumps({"grid": 4}))

    def llamagen(name, config, **parts):
        gpt = layouts.write_llamagen(folder / f"{name}.pt", config)
        vq = layouts.write_vq(folder / f"{name}-vq.pt", layouts.TINY_VQ)
        return convert_llamagen(gpt, vq, config=folder / "sizes.json", out=folder / "out" / name, **parts)

    def chameleon(layout):
        config = layouts.TINY_CHAMELEON
        model = layouts.write_chameleon(
            folder / f"{layout}-model", config, layouts.TINY_VQGAN, dtype=np.float32
        )
        vqgan = layouts.write_vqgan(folder / f"{layout}.ckpt", layouts.TINY_VQGAN)
        text = folder / f"{layout}.json"
        layouts.write_text_tokenizer(text, config.num_codes, config.vocab_size, shuffle=1)
        out = folder / "out" / layout
        return convert_chameleon_files(
            model, vqgan, config=folder / "grid.json", text_tokenizer=text, layout=layout, out=out, dtype="float32"
        )  # fmt: skip

    def convert(name):
        if name not in made:
            (folder / "out").mkdir(exist_ok=True)
            if name == "t2i":
                t5 = layouts.write_t5(folder / "t5", layouts.TINY_T5)
                parts = {"t5": t5, "t5_tokenizer": layouts.write_t5_tokenizer(folder / "t5.json")}
                made[name] = llamagen(name, layouts.TINY_CAPTION, dtype="float32", **parts)
            elif name == "c2i":
                made[name] = llamagen(name, layouts.TINY_CLASS, dtype="float32")
            else:
                made[name] = chameleon(name)
        return made[name]

    return convert


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """name -> a folder of a few pictures with what the target takes for captions."""

    def write(name):
        folder = tmp_path_factory.mktemp("pictures")
        texts = CLASSES if name == "c2i" else CAPTIONS
        for i, text in enumerate(texts):
            rng = np.random.default_rng(i)
            Image.fromarray(rng.integers(0, 256, (12, 9, 3), np.uint8)).save(folder / f"{i}.png")
            (folder / f"{i}.txt").write_text(text + "\n")
        return folder

    return write


def extract(model: Path, name: str, folder: Path, workdir: Path):
    """The store of five pictures and three samples; returns the checkpoint."""
    checkpoint = target.read_target(model)
    prompts = CLASS_PROMPTS if name == "c2i" else PROMPTS
    made = sources.prompted(checkpoint, workdir, folder, prompts, samples=3, seed=1)
    features.extract(checkpoint, made, workdir, seed=1, batch_size=BATCH)
    return checkpoint


@pytest.fixture(scope="module")
def extracted(converted, pictures, tmp_path_factory):
    """name -> (checkpoint directory, features)."""
    made = {}

    def extract_once(name):
        if name not in made:
            workdir = tmp_path_factory.mktemp("features")
            extract(converted(name), name, pictures(name), workdir)
            made[name] = workdir
        return converted(name), made[name]

    return extract_once


# Captions of their own lengths with row ends that are forced. Labels: test_drafter.py.
@families("lumina")
def test_features_are_those_of_decoding_step_by_step(name, extracted, pictures):
    """Of a picture of the folder and of a sample, both rows, with their paddings."""
    model, workdir = extracted(name)
    checkpoint, store = target.read_target(model), FeatureStore(workdir)
    config, params = checkpoint.target_config, checkpoint.target_params
    record = family_of(config).target(config, FLOAT32)
    assert len(store) == 8
    stored, prefix, tokens = store.read([1, 6])
    texts = [CLASSES[1], CLASS_PROMPTS[1]] if name == "c2i" else [CAPTIONS[1], PROMPTS[1]]
    pipeline = lantern_jax.load(model)
    conditioning = jax.tree.map(lambda leaf: leaf[np.arange(2)], pipeline._encoder.encode(texts, np.float32))
    cache, _, seen = jax.jit(record.prefill, static_argnums=3)(
        params, conditioning, jnp.ones(2), config.num_tokens
    )
    step = jax.jit(
        lambda cache, token: record.score(
            params, cache, token, jnp.zeros(1, jnp.int32), np.ones((1, 1), bool)
        )
    )
    commit = jax.jit(record.commit)
    made = [seen.features]
    for position in range(config.num_tokens - 1):
        _, one, block = step(cache, jnp.asarray(tokens[:, position : position + 1]))
        cache = commit(cache, block, jnp.zeros((2, 1), jnp.int32), jnp.ones(2, jnp.int32))
        made.append(one)
    expected = np.swapaxes(np.concatenate(made, axis=2), 0, 1)
    assert stored.shape == expected.shape
    assert np.abs(stored).mean() > 0.1
    valid = np.pad(prefix >= 0, ((0, 0), (0, 0), (0, config.num_tokens - 1)), constant_values=True)
    np.testing.assert_array_equal(prefix >= 0, np.swapaxes(np.asarray(seen.mask), 0, 1))
    np.testing.assert_array_equal(
        np.where(prefix >= 0, prefix, 0), np.swapaxes(np.where(seen.mask, seen.tokens, 0), 0, 1)
    )
    np.testing.assert_allclose(stored[valid], expected[valid], atol=3e-3)
    assert (name == "c2i") == bool((prefix >= 0).all())
    free = record.forced < 0
    np.testing.assert_array_equal(tokens[:, ~free], np.stack([record.forced[~free]] * 2))
    vq = checkpoint.tokenizer_config, checkpoint.tokenizer_params
    codes = encode_pictures(*vq, PictureFolder(pictures(name), 4 * vq[0].downsampling).load([0, 1])[0])
    np.testing.assert_array_equal(tokens[0, free], codes[1])


@families("lumina")  # With class labels the sequence is that of test_drafter.
def test_passes_are_what_the_drafter_does_below_a_root(name, extracted):
    """With each family's positions, paddings and prefix tokens."""
    model, workdir = extracted(name)
    checkpoint = target.read_target(model)
    sizes = target_drafter(name, checkpoint)
    params = jax.jit(drafter.make_task(config_of(name), sizes).init)(jax.random.key(1)).params
    features_, prefix, tokens = (jnp.asarray(part) for part in FeatureStore(workdir).read([0, 3]))
    stored, prefix = (jnp.swapaxes(part, 0, 1) for part in (features_.astype(jnp.float32), prefix))
    twice = jnp.broadcast_to(tokens[None], (2, *tokens.shape))
    inputs, wanted = chains.drafter_inputs(stored, prefix, twice)
    made = jax.jit(chains.drafter_passes, static_argnums=(0, 3))(DrafterModel(sizes), params, inputs, 3)
    length = prefix.shape[-1]
    assert wanted.shape == stored[:, :, 1:].shape and inputs.first == length - 1

    record = eagle_drafter(sizes)
    both = {"drafter": {"params": params}, "head": checkpoint.target_params["params"]["head"]["kernel"]}
    positions = jnp.zeros(prefix.shape, jnp.int32)
    seen = lantern_jax.Prefix(
        stored[:, :, :length], jnp.maximum(prefix, 0), prefix >= 0, positions, jnp.ones(2)
    )
    state = record.init(both, seen, 16, 4, 3)
    root, absorb, expand = 3, jax.jit(record.absorb), jax.jit(record.expand)
    absorbed = stored[:, :, length - 1 : length + root]
    state, _ = absorb(both, state, absorbed, tokens[:, : root + 1], jnp.full(2, root + 1, jnp.int32))
    chain = [state.features[:, :, 0]]
    for depth in (1, 2):
        node = tokens[:, root + depth, None]
        state, _ = expand(both, state, node, jnp.full((2, 1), depth - 1))
        chain.append(state.features[:, :, depth])
    for depth, expected in enumerate(chain):
        np.testing.assert_allclose(made[depth][:, :, length - 1 + root + depth], expected, atol=2e-4)


@pytest.mark.parametrize("name", ["lumina"])
def test_distributions_count_where_the_next_token_is_sampled(name, extracted, monkeypatch):
    """Row ends and the image end are not drafted: a loss that is 1 there and 0 elsewhere is 0 in the mean."""
    model, workdir = extracted(name)
    checkpoint, config = target.read_target(model), config_of(name)
    sizes, head = checkpoint.target_config, checkpoint.target_params["params"]["head"]["kernel"]
    task = drafter.make_task(config, target_drafter(name, checkpoint))
    stored, prefix, tokens = FeatureStore(workdir).read([0, 3])
    batch = {"features": jnp.asarray(stored), "prefix": jnp.asarray(prefix), "tokens": jnp.asarray(tokens)}
    free = family_of(sizes).target(sizes, FLOAT32).forced < 0
    model = DrafterModel(target_drafter(name, checkpoint))
    params = jax.jit(task.init)(jax.random.key(0)).params
    config.update({"token_weight": 0.0, "feature_weight": 0.0, "guided_weight": 1.0})

    def loss_of(marked):
        def distance(logits, wanted, _):
            # The root of depth d is at least token d, which is followed by token d + 1.
            return jnp.asarray(marked[-logits.shape[1] :], jnp.float32)[None] + 0 * logits[..., 0]

        monkeypatch.setattr(drafter, "distribution_loss", lambda name: distance)
        loss = jax.jit(
            lambda params, batch, key: drafter.drafter_loss(
                model, params, jnp.asarray(head), batch, key, config, free
            )[0]
        )
        return loss(params, batch, jax.random.key(0))

    np.testing.assert_allclose(loss_of(~free), 0, atol=1e-6)
    np.testing.assert_allclose(loss_of(free), 1, atol=1e-6)


def config_of(name):
    config = CONFIGS[name].get_config()
    changes = {"num_heads": 2, "hidden_dim": 48}
    config.update({
        "steps": 20, "batch_size": 8, "log_every": 5, "save_every": 20, "adam_rate": 3e-3, "warmup": 2,
        "average": 0.9, "passes": 2, "clip": 5.0, "model": changes,
    })  # fmt: skip
    return config


def target_drafter(name, checkpoint):
    return drafter.drafter_config(config_of(name), checkpoint.target_config)


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        *((llamagen_c2i_drafter.get_config(size), published_config(size)) for size in ("B", "XL", "3B")),
        (llamagen_t2i_drafter.get_config(), published_config("XL", "caption", 32)),
        (anole_drafter.get_config(), ChameleonConfig()),
        (lumina_drafter.get_config(), ChameleonConfig(grid=48, layout="lumina")),
    ],
)
def test_full_size_drafters_are_one_layer_of_their_target(config, sizes):
    assert drafter.drafter_config(config, sizes) == layouts.drafter_of(sizes)


@pytest.mark.exhaustive  # The demo's chain, in test_demo.py, goes this way too.
@families("lumina")
@pytest.mark.usefixtures("optax_promotion")
def test_a_trained_drafter_drafts_in_its_checkpoint(name, extracted, tmp_path):
    model, workdir = extracted(name)
    drafter.train(config_of(name), model, workdir, tmp_path / "run", "data=1")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < 0.9 * lines[0]["loss"]
    checkpoint = export.with_drafters(model, [tmp_path / "run"])
    assert checkpoint.drafters["eagle"][0] == target_drafter(name, checkpoint)
    lantern_jax.checkpoints.store.save(tmp_path / "drafting", checkpoint)
    with jax.numpy_dtype_promotion("strict"):
        pipeline = lantern_jax.load(tmp_path / "drafting", mesh="data=1")
        prompts = CLASS_PROMPTS if name == "c2i" else PROMPTS
        made = pipeline.generate(prompts, tree=TREE, temperature=4.0, top_k=0, compare=True)
    np.testing.assert_array_equal(made.tokens, made.plain.tokens)
    assert made.statistics.step_compression > 1


@pytest.mark.exhaustive  # That an experiment is given its size is in test_script.py.
@pytest.mark.usefixtures("optax_promotion")
def test_the_documented_command_trains_a_drafter_of_another_size(extracted, tmp_path):
    model, workdir = extracted("c2i")
    drafter.main([
        "--config", "configs/llamagen_c2i_drafter.py:L", "--config.steps=2", "--config.batch_size=2",
        "--config.log_every=1", "--config.save_every=2", "--config.warmup=1", "--config.passes=1",
        "--config.model.num_heads=2",  # The tiny target is too narrow for sixteen.
        "--target", str(model), "--features", str(workdir), "--workdir", str(tmp_path / "run"), "--mesh", "data=1",
    ])  # fmt: skip
    config, _ = export.with_drafters(model, [tmp_path / "run"]).drafters["eagle"]
    assert config.hidden_dim == published_config("L").transformer.hidden_dim


class Killed(BaseException):
    pass


# What writes a stage's files -> its module and how these are called.
STAGES = {
    "save_encoded": (sources, "captions/captions_*.npz"),
    "write_array": (sources, "codes/codes_*.npy"),
    "write_shard": (features, "features_*.npy"),
}


@pytest.mark.parametrize(
    "stage",
    [pytest.param(name, marks=() if name == "write_shard" else pytest.mark.exhaustive) for name in STAGES],
)
def test_killed_extraction_goes_on_after_its_last_file(stage, pictures, extracted, tmp_path, monkeypatch):
    """The second file of a stage never appears; the next call makes what is missing and nothing again."""
    model, whole = extracted("t2i")
    run, (module, pattern), calls = tmp_path / "run", STAGES[stage], []
    work = getattr(module, stage)

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise Killed
        return work(*arguments)

    monkeypatch.setattr(module, stage, killed)
    folder = pictures("t2i")
    with pytest.raises(Killed):
        extract(model, "t2i", folder, run)
    assert len(list(run.glob(pattern))) == 1
    assert extract(model, "t2i", folder, run).text_encoder_params is None
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
    with pytest.raises(ValueError, match="give --folder, --prompts or both"):
        sources.prompted(checkpoint, tmp_path)
    with pytest.raises(ValueError, match="'Snow, and a dog in it' is not a class"):
        sources.prompted(checkpoint, tmp_path, pictures("t2i"))
    with pytest.raises(ValueError, match="is not a file: give a text file of prompts"):
        sources.read_prompts(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match="is empty: give prompts"):
        sources.read_prompts(tmp_path / "empty.txt")
    record = family_of(checkpoint.target_config).target(checkpoint.target_config, FLOAT32)
    with pytest.raises(ValueError, match="expected 16 a picture below 64"):
        features.streams(record, np.zeros((2, 9), np.int32))
    sources.claim(tmp_path / "work", {"pictures": "a"})
    with pytest.raises(ValueError, match="holds work on another pictures: name another --workdir"):
        sources.claim(tmp_path / "work", {"pictures": "b"})


def retrained(checkpoint):
    """The same target with one weight changed."""
    params = jax.tree.map(np.array, checkpoint.target_params)
    params["params"]["head"]["kernel"][0, 0] += 1e-3
    return dataclasses.replace(checkpoint, target_params=params)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"checkpoint": retrained}, "weights"),
        ({"seed": 2}, "settings"),
        ({"checkpoint": lambda old: dataclasses.replace(old, defaults={"guidance": 2.0})}, "settings"),
        ({"dtype": jnp.bfloat16}, "dtype"),
        ({"samples": 4}, "samples"),
    ],
    ids=["weights", "seed", "guidance", "dtype", "samples"],
)
def test_features_that_anything_else_decided_are_not_gone_on_with(
    change, what, extracted, pictures, tmp_path
):
    """Neither those of a retrained target nor those of other samples; what is there stays."""
    model, done = extracted("c2i")
    workdir = shutil.copytree(done, tmp_path / "features")
    last = sorted(workdir.glob("*_00004.npy"))
    assert len(last) == 3
    for file in last:
        file.unlink()
    options = {
        "checkpoint": lambda checkpoint: checkpoint,
        "seed": 1,
        "dtype": np.float32,
        "samples": 3,
    } | change
    checkpoint = options["checkpoint"](target.read_target(model))
    made = sources.prompted(
        checkpoint, workdir, pictures("c2i"), CLASS_PROMPTS, samples=options["samples"], seed=1
    )
    with pytest.raises(ValueError, match=f"holds work on another .*{what}"):
        features.extract(
            checkpoint, made, workdir, seed=options["seed"], batch_size=BATCH, dtype=options["dtype"]
        )
    assert not list(workdir.glob("*_00004.npy"))


def test_a_run_that_goes_on_with_another_batch_size_has_every_row_once(
    extracted, pictures, tmp_path, monkeypatch
):
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


def test_codes_and_captions_of_other_weights_are_not_reused(converted, pictures, extracted, tmp_path):
    model, done = extracted("t2i")
    workdir, checkpoint = shutil.copytree(done, tmp_path / "features"), target.read_target(model)
    vq = jax.tree.map(lambda leaf: leaf + 1e-3, checkpoint.tokenizer_params)
    t5 = jax.tree.map(
        lambda leaf: leaf + 1e-3, lantern_jax.checkpoints.store.load_text_encoder(checkpoint, np.float32)
    )
    for change, folder in (({"tokenizer_params": vq}, "codes"), ({"text_encoder_params": t5}, "captions")):
        other = dataclasses.replace(checkpoint, **change)
        with pytest.raises(ValueError, match=f"{folder} holds work on another (tokenizer|text encoder)"):
            sources.prompted(other, workdir, pictures("t2i"), PROMPTS, samples=3, seed=1)


def test_a_digest_is_of_values_in_a_dtype():
    params = {"a": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3), "b": {"c": np.ones((), np.float32)}}
    digest = sources.parameters_digest(params)
    assert digest == sources.parameters_digest(jax.tree.map(jnp.asarray, params))
    assert digest == sources.parameters_digest(params | {"a": params["a"].reshape(3, 2)})
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    assert sources.parameters_digest(half) == sources.parameters_digest(params, "bfloat16") != digest
    changed = params | {"a": np.nextafter(params["a"], np.float32(2))}
    assert sources.parameters_digest(changed) != digest
    assert sources.parameters_digest({"b": params["b"], "d": params["a"]}) != digest


def test_features_of_another_target_are_refused(extracted, converted, tmp_path):
    _, workdir = extracted("c2i")
    with pytest.raises(ValueError, match="holds features of another target"):
        drafter.train(config_of("lumina"), converted("lumina"), workdir, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_features_of_a_retrained_target_train_no_drafter(extracted, tmp_path):
    model, workdir = extracted("c2i")
    changed = retrained(lantern_jax.checkpoints.store.load(model, None))
    lantern_jax.checkpoints.store.save(tmp_path / "retrained", changed)
    with pytest.raises(ValueError, match="holds features of another target"):
        drafter.train(config_of("c2i"), tmp_path / "retrained", workdir, tmp_path / "run")
    assert not (tmp_path / "run").exists()
