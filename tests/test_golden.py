"""Golden cases, through the converters: ``pytest tests/test_golden.py --golden-dir DIR`` runs any folder of them.

A case is recognised by its content, so other sizes and other file names of the same format work.
"""

import math
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.apps.metrics.features import network
from lantern_jax.apps.metrics.inception import Inception, convert_inception
from lantern_jax.apps.metrics.preprocessing import INCEPTION
from lantern_jax.decoding.acceptance import Codebook, Lantern, LanternPlusPlus, Strict
from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.drafting.growing import DynamicTree
from lantern_jax.decoding.gumbel import Greedy, Gumbel
from lantern_jax.decoding.loop import autoregressive_decode
from lantern_jax.decoding.neighbours import nearest_codes
from lantern_jax.decoding.protocols import Draft, Pending, Prefix
from lantern_jax.decoding.sampling import SamplingParams, process_logits
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.decoding.verification import verify_tree
from lantern_jax.drafters.eagle import DrafterModel, eagle_drafter
from lantern_jax.drafters.eagle_weights import convert_drafter
from lantern_jax.drafters.sequence import sequence_rotary
from lantern_jax.families.chameleon.weights import convert_vqgan
from lantern_jax.families.llamagen.model import CaptionConditioning, LlamaGen
from lantern_jax.families.llamagen.weights import convert_gpt, convert_vq
from lantern_jax.families.registry import target_of
from lantern_jax.models.vq import VQModel
from tests.golden_cases import DEFAULT_DIRECTORY, find_cases, read_case
from tests.golden_guided import GUIDED
from tests.golden_residual import VARIANTS, run_published_residual

GREEDY = SamplingParams.create(0.0)
# Quick runs have only a part of these.
RARE = ("published_residual", "inception_fid")


def pytest_generate_tests(metafunc):
    directory = metafunc.config.getoption("--golden-dir")
    cases = find_cases(DEFAULT_DIRECTORY if directory is None else Path(directory))
    if "golden_path" in metafunc.fixturenames:
        marks = {name: pytest.mark.exhaustive for name in RARE if directory is None}
        paths = [pytest.param(path, id=path.stem, marks=marks.get(path.stem, ())) for path in cases]
        metafunc.parametrize("golden_path", paths)


def test_case(golden_path, assert_close):
    case = read_case(golden_path)
    assert case.kind in RUNNERS, f"{case.name} is of no known kind"
    RUNNERS[case.kind](case, assert_close)


@pytest.mark.slow
def test_published_residuals_of_static_trees(monkeypatch):
    for name in set(VARIANTS) - {"llamagen_static"}:
        monkeypatch.delitem(VARIANTS, name)
    run_published_residual(read_case(DEFAULT_DIRECTORY / "published_residual.json"))


def _run_gpt(case, assert_close):
    arrays = case.arrays
    settings = {"num_heads": case.config["n_head"], "grid": math.isqrt(case.config["block_size"])}
    config, params = convert_gpt(case.tensors, settings)
    forced = jnp.asarray(arrays["forced_tokens"], jnp.int32)

    if config.num_labels:
        conditioning = jnp.asarray(arrays["class_ids"], jnp.int32)[:, None]
    else:
        mask = jnp.asarray(arrays["caption_mask"]) > 0
        conditioning = CaptionConditioning(jnp.asarray(arrays["caption"]), mask)

    one_by_one = jnp.zeros((1, 1), jnp.int32), np.ones((1, 1), bool)
    target = target_of(config)
    prefilled = jax.jit(target.prefill, static_argnums=3)(params, conditioning, None, 2 * config.num_tokens)
    logits, features = _teacher_forced(target, params, prefilled, forced, *one_by_one)
    prefix_features = prefilled[2].features[0]
    assert_close(prefix_features, arrays["prefill_features"])
    assert_close(logits, arrays["logits"])
    assert_close(features, arrays["features"])

    # The same in one block, as verification scores a path.
    length = config.num_tokens - 1
    chain = jnp.arange(length, dtype=jnp.int32)[None], np.tril(np.ones((length, length), bool))
    logits, features = _teacher_forced(target, params, prefilled, forced, *chain)
    assert_close(logits, arrays["logits"])
    assert_close(features, arrays["features"])

    # And without a cache, as training runs it.
    features, logits = jax.jit(LlamaGen(config).apply)(params, conditioning, forced)
    assert_close(logits, arrays["logits"])
    assert_close(features, arrays["features"])

    keys = jax.random.split(jax.random.key(0), len(forced))
    decoded = autoregressive_decode(
        target, params, conditioning, keys,
        guidance=jnp.full(len(forced), 2.5, jnp.float32), sampling=GREEDY,
    )  # fmt: skip
    np.testing.assert_array_equal(decoded.tokens, arrays["greedy_tokens_cfg2p5"])


def _teacher_forced(target, params, prefilled, forced, depth, ancestors):
    """Returns logits and features [B, ...] through the target record, with as many tokens per block as depths."""
    batch, block_size, (cache, first, prefix) = len(forced), depth.shape[-1], prefilled
    logits, features = [first[:, None]], [prefix.features[0, :, -1:]]
    path = jnp.broadcast_to(jnp.arange(block_size, dtype=jnp.int32)[None], (batch, block_size))

    @jax.jit
    def step(cache, tokens):
        logits, features, block = target.score(params, cache, tokens, depth, ancestors)
        count = jnp.full(batch, block_size, jnp.int32)
        return logits, features[0], target.commit(cache, block, path, count)

    for start in range(0, target.num_tokens - 1, block_size):
        more_logits, more_features, cache = step(cache, forced[:, start : start + block_size])
        logits.append(more_logits)
        features.append(more_features)
    return jnp.concatenate(logits, axis=1), jnp.concatenate(features, axis=1)


def _run_vq(case, assert_close, convert):
    arrays = case.arrays
    config, params = convert(case.tensors)
    assert config.l2_norm == case.config.get("codebook_l2_norm", False)
    model, params = VQModel(config), {"params": params}
    pictures = jnp.asarray(arrays["image_nchw"].transpose(0, 2, 3, 1))

    def apply(method, *inputs):
        return jax.jit(partial(model.apply, method=method))(params, *inputs)

    vectors = apply("encode", pictures)
    assert_close(vectors, arrays["pre_quant_nchw"].transpose(0, 2, 3, 1))
    indices = apply("quantize", vectors)
    np.testing.assert_array_equal(indices, arrays["indices"].reshape(indices.shape))
    decoded = apply("decode", jnp.asarray(arrays["codes"], jnp.int32))
    assert_close(decoded, arrays["decoded_nchw"].transpose(0, 2, 3, 1))


def _run_drafter(case, assert_close):
    arrays, settings = case.arrays, case.config
    tensors = dict(case.tensors)
    head = jnp.asarray(tensors.pop("lm_head.weight").T)
    given = {
        "num_heads": settings["num_attention_heads"],
        "norm_eps": settings["rms_norm_eps"],
        "rope_base": float(settings["rope_base"]),
        "grid": settings["grid"],
        "prefix_length": settings["zero_rope_positions"] + 1,
    }
    config, params = convert_drafter(tensors, given)
    features, tokens = jnp.asarray(arrays["features"]), jnp.asarray(arrays["token_ids"], jnp.int32)
    length = tokens.shape[1]

    rotary = sequence_rotary(config, jnp.ones((1, length), bool))
    causal = jnp.asarray(np.tril(np.ones((length, length), bool)))[None]
    predicted, _ = jax.jit(DrafterModel(config).apply)(params, features, tokens, rotary, causal)
    assert_close(predicted, arrays["out_features"])
    assert_close(np.asarray(predicted) @ np.asarray(head), arrays["logits"])

    _absorb_in_steps(config, {"drafter": params, "head": head}, case, assert_close)
    _grow_dynamic_tree(config, {"drafter": params, "head": head}, case)


def _grow_dynamic_tree(config, params, case):
    """Grows EAGLE-2's tree after the last position, drawn greedily, and compares it."""
    arrays, sizes = case.arrays, case.config["dynamic_tree"]
    width = sizes["top_k"]
    # Published: a first pass and ``depth`` more, and the root counts as a node.
    tree = DynamicTree(sizes["total_tokens"] - 1, sizes["depth"] + 1, frontier=width, children=width)
    drafting, first = eagle(eagle_drafter(config), tree), config.prefix_length - 1
    features = arrays["features"][:, None]
    tokens = arrays["token_ids"][:1].astype(np.int32)
    count = tokens.shape[1] - first
    init = jax.jit(drafting.init, static_argnums=(2, 3))
    state = init(params, _drafter_prefix(case, first), tokens.shape[1], count)
    committed = state.committed.replace(
        features=features[:, :, first:],
        tokens=np.roll(tokens[:, first:], 1, axis=1),
        count=jnp.asarray([count], jnp.int32),
    )
    state = state.replace(committed=committed)
    pending = Pending(tokens[:, -1:], jnp.ones(1, jnp.int32), jnp.zeros(1, jnp.int32), tokens[:, :-4:-1])
    propose = jax.jit(lambda *given: drafting.propose(*given, Greedy(), GREEDY)[0])
    draft = propose(params, state, pending)
    np.testing.assert_array_equal(draft.tokens[0], arrays["dynamic_tree_tokens"])
    np.testing.assert_array_equal(draft.topology.ancestors[0], arrays["dynamic_tree_mask"] != 0)
    np.testing.assert_array_equal(draft.topology.depth[0], arrays["dynamic_tree_depth"])


def _drafter_prefix(case, first):
    """Makes the target's prefix, one longer than the drafter's, which absorbs the last position's feature.

    A part of it is padding, which the published drafters see like the rest.
    """
    features = case.arrays["features"][:, None]
    rows = len(features)
    return Prefix(
        features=features[:, :, : first + 1],
        tokens=np.zeros((rows, 1, first + 1), np.int32),
        mask=np.broadcast_to(np.arange(first + 1) >= first // 2, (rows, 1, first + 1)),
        positions=np.zeros((rows, 1, first + 1), np.int32),
        guidance=jnp.asarray([case.config["cfg_scale"]], jnp.float32),
    )


def _absorb_in_steps(config, params, case, assert_close):
    """Has the drafter record absorb the sequence in blocks of three, of which one to three rows count."""
    arrays, scale = case.arrays, case.config["cfg_scale"]
    drafter, first = eagle_drafter(config), config.prefix_length - 1
    features = arrays["features"][:, None]
    tokens = arrays["token_ids"].astype(np.int32)[:, None]
    init = jax.jit(drafter.init, static_argnums=(2, 3, 4))
    state = init(params, _drafter_prefix(case, first), tokens.shape[2], 3, 1)
    unconditional, conditional = arrays["logits"][1], arrays["logits"][0]
    guided = unconditional + scale * (conditional - unconditional)
    absorb, start, block = jax.jit(drafter.absorb), first, 3
    for count in (1, 3, 2):
        rest = np.full((1, block - count), 0, np.int32)
        some_tokens = np.concatenate([tokens[0, :, start : start + count], rest], axis=1)
        some_features = np.pad(
            features[:, :, start : start + count], ((0, 0), (0, 0), (0, block - count), (0, 0))
        )
        state, logits = absorb(params, state, some_features, some_tokens, np.array([count], np.int32))
        start += count
        assert_close(state.features[:, 0, 0], arrays["out_features"][:, start - 1])
        assert_close(logits[0], guided[start - 1])


def _run_acceptance(case, assert_close):
    arrays = case.arrays
    nearest = arrays["nearest"].astype(np.int32)
    codes = jnp.asarray(arrays["codebook"])
    np.testing.assert_array_equal(nearest_codes(codes, nearest.shape[1]), nearest)
    codebook = Codebook(neighbours=jnp.asarray(nearest), codes=codes)
    settings = case.config["rules"]
    rules = {
        "strict": Strict(),
        "lantern": Lantern(settings["lantern"]["k"], settings["lantern"]["tvd"]),
        "lanternpp": LanternPlusPlus(settings["lanternpp"]["k"], settings["lanternpp"]["multiplier"]),
    }
    trees = {name: DraftTree.from_paths(paths) for name, paths in case.config["trees"].items()}
    for name, tree in trees.items():
        np.testing.assert_array_equal(tree.parents, arrays[f"{name}_parents"])
    verify = jax.jit(
        lambda tree, tokens, log_probs, rule: verify_tree(
            Draft(tokens, tree), log_probs, Greedy(), coupling=Gumbel(), rule=rule, codebook=codebook
        ),
        static_argnums=0,
    )
    for entry in case.config["cases"]:
        name, rule = entry["case"], entry["rule"]
        tree = trees[name.rpartition("_")[0]]
        logits = jnp.asarray(arrays[f"{name}_logits"])
        tokens = jnp.asarray(arrays[f"{name}_tokens"], jnp.int32)
        verdict = verify(tree, tokens[None], process_logits(logits, GREEDY)[None], rules[rule])
        count = int(verdict.count[0])
        assert count == entry["accepted"], f"{name}, {rule}"
        np.testing.assert_array_equal(verdict.path[0, : count + 1], arrays[f"{name}_{rule}_path"])
        assert int(verdict.bonus[0]) == int(np.argmax(arrays[f"{name}_logits"][int(verdict.path[0, count])]))


def _run_inception(case, assert_close):
    read = network(Inception().apply, convert_inception(case.tensors))
    pictures = case.arrays["image_nchw_uint8"].transpose(0, 2, 3, 1)
    prepared = np.stack([INCEPTION["pytorch-fid"](picture) for picture in pictures])
    assert_close(read(prepared), case.arrays["features"])


RUNNERS = {
    "llamagen_gpt_c2i": _run_gpt,
    "llamagen_gpt_t2i": _run_gpt,
    "llamagen_vq": partial(_run_vq, convert=convert_vq),
    "chameleon_vqgan": partial(_run_vq, convert=convert_vqgan),
    "lantern_drafter_llamagen": _run_drafter,
    "acceptance_greedy": _run_acceptance,
    "inception_fid": _run_inception,
    **GUIDED,
    "published_residual": lambda case, assert_close: run_published_residual(case),
}
