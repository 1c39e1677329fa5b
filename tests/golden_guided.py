"""Golden cases of models of ``GuidedTokens``: logits with guidance, step by step and in a block, and pictures."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lantern_jax.decoding.protocols import GuidedTokens, TokenConditioning
from lantern_jax.families.registry import FAMILIES, family_of
from lantern_jax.models.vq import VQModel


def conditioning_of(arrays, config) -> GuidedTokens | TokenConditioning:
    """Returns a case's prompts as stream ids; GLM-Image's are published so, and not guided."""
    codes = config.num_codes
    if "guidance" not in arrays:
        return TokenConditioning(jnp.asarray(arrays["prompt_ids"], jnp.int32), arrays["prompt_mask"])
    ids, mask = ([arrays[f"{row}_{part}"] for row in ("prompt", "unconditional")] for part in ("ids", "mask"))
    # X-Omni's prompts have marks of pictures, which come right after the codes here and after the text there.
    begin, size = (
        (config.picture_tokens, config.vocab_size) if "picture_tokens" in vars(config) else (codes, 1 << 30)
    )
    tokens, unconditional = (jnp.asarray((row + begin) % size, jnp.int32) for row in ids)
    return GuidedTokens(tokens, mask[0], unconditional, mask[1])


def run_guided(case, assert_close):
    """Compares logits of a prefix, of steps of one token and of a block, then a decoded picture."""
    arrays, codes = case.arrays, jnp.asarray(case.arrays["codes"], jnp.int32)
    settings = {name: value for name, value in case.config.items() if name != "told"}
    tensors, beside = {}, {}
    for name, tensor in case.tensors.items():
        (tensors if name.startswith(("model.", "lm_head.", "mm_head.")) else beside)[name] = tensor
    published = FAMILIES[case.config["model_type"]].published
    config = published.sizes(tensors, settings | case.config.get("told", {}))
    _, params = published.read(tensors, config)
    target = family_of(config).target(config, np.dtype(np.float32))
    guidance = jnp.asarray(arrays["guidance"]) if "guidance" in arrays else None
    batch, steps = codes.shape
    cache, first, _ = jax.jit(target.prefill, static_argnums=3)(
        params, conditioning_of(arrays, config), guidance, 2 * steps
    )
    layer = config.transformer
    assert cache.layers[0][0].shape[2] == layer.key_heads

    @partial(jax.jit, static_argnums=2)
    def step(cache, tokens, count):
        causal = np.tril(np.ones((count, count), bool))
        logits, _, block = target.score(params, cache, tokens, np.arange(count), causal)
        path = jnp.tile(jnp.arange(count, dtype=jnp.int32), (batch, 1))
        return logits, target.commit(cache, block, path, jnp.full(batch, count, jnp.int32))

    found = [first[:, None]]
    for start, count in ((0, 1), (1, 1), (2, steps - 2)):
        logits, cache = step(cache, codes[:, start : start + count], count)
        found.append(logits)
    assert_close(jnp.concatenate(found, axis=1), arrays["logits"])

    tokenizer = published.tokenizer_inside(tensors) or beside
    if tokenizer:
        sizes, tokenizer = published.read_tokenizer(tokenizer)
        decode = jax.jit(partial(VQModel(sizes).apply, method="decode"))
        picture_codes = jnp.asarray(arrays["picture_codes"], jnp.int32)
        assert_close(decode({"params": tokenizer}, picture_codes), arrays["decoded_nhwc"])
        if "image_codes" in arrays:
            model = VQModel(sizes)
            encode = jax.jit(lambda params, pictures: model.apply(params, pictures, method=_codes))
            found = encode({"params": tokenizer}, jnp.asarray(arrays["image_nhwc"]))
            np.testing.assert_array_equal(found, arrays["image_codes"])


def _codes(model, pictures):
    return model.quantize(model.encode(pictures))


GUIDED = dict.fromkeys(("janus", "emu3", "liquid", "lumina2", "glm_image", "x_omni"), run_guided)
