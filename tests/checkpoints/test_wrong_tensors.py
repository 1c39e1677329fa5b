"""Every reader of published tensors: wrong names and shapes are a one-line error, before any value is read."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from lantern_jax.apps.convert.conversion import without_prefix
from lantern_jax.apps.metrics.clip_files import HUGGING_FACE, OPENAI, clip_table, convert_clip
from lantern_jax.apps.metrics.inception import convert_inception, inception_table
from lantern_jax.apps.metrics.vgg import convert_vgg, vgg_table
from lantern_jax.drafters.eagle_weights import convert_drafter
from lantern_jax.families.chameleon.weights import (
    chameleon_config_from_shapes,
    convert_chameleon,
    convert_vqgan,
)
from lantern_jax.families.config_files import normalize_settings
from lantern_jax.families.emu3.weights import convert_emu3, emu3_config_from_shapes
from lantern_jax.families.janus.weights import DIALECT as JANUS
from lantern_jax.families.liquid.weights import convert_liquid, liquid_config_from_shapes
from lantern_jax.families.llamagen.t5_weights import convert_t5
from lantern_jax.families.llamagen.weights import convert_gpt, convert_vq
from lantern_jax.tensors.matching import describe_mismatch
from tests.fixtures import guided_layouts, guided_shapes
from tests.fixtures import published_layouts as layouts
from tests.fixtures import published_shapes as published
from tests.metrics.published_networks import TINY_VGG
from tests.metrics.tiny_clip import CONFIG as CLIP
from tests.refused import refused

CLASS, CAPTION, CHAMELEON = layouts.TINY_CLASS, layouts.TINY_CAPTION, layouts.TINY_CHAMELEON
ORDER = np.arange(CHAMELEON.vocab_size)


class Claimed:
    def __init__(self, shape):
        self.shape = tuple(shape)

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("it was read")


def of_table(table):
    return {name: entry.shape for name, entry in table.items()}


gpt = partial(convert_gpt, config={"num_heads": 2, "grid": 4})
drafter = partial(convert_drafter, target=CAPTION)


def chameleon(tensors, order=ORDER):
    config = chameleon_config_from_shapes(tensors, {"grid": 4, "num_codes": CHAMELEON.num_codes})
    return convert_chameleon(tensors, config, order=order)


def liquid(tensors, config=None):
    return convert_liquid(tensors, liquid_config_from_shapes(tensors, config or LIQUID))


def emu3(tensors, config=None):
    return convert_emu3(tensors, emu3_config_from_shapes(tensors, config or EMU3))


clip = partial(convert_clip, told={"activation": "gelu"})
vgg = partial(convert_vgg, sizes=TINY_VGG)
guided = {"grid": guided_layouts.GRID, "num_codes": guided_layouts.CODES}
LIQUID, EMU3 = guided | {"num_heads": 2}, guided | {"num_heads": 4, **guided_layouts.EMU3_ENDS}
# Reader -> (what converts, what returns names and shapes, tensors that decide no size: one to drop, one to misshape).
READERS = {
    "GPT": (
        gpt, lambda: published.original_gpt_shapes(CLASS), "norm.weight", "layers.1.feed_forward.w2.weight",
    ),
    "GPT on the hub": (
        gpt, lambda: published.hugging_face_gpt_shapes(CAPTION),
        "model.norm.weight", "model.layers.1.mlp.down_proj.weight",
    ),
    "VQ": (
        convert_vq, lambda: published.llamagen_vq_shapes(layouts.TINY_VQ), "quant_conv.bias", "post_quant_conv.weight"
    ),
    "VQGAN": (
        convert_vqgan, lambda: published.vqgan_shapes(layouts.TINY_VQGAN),
        "quant_conv.bias", "decoder.conv_out.weight",
    ),
    "Chameleon": (
        chameleon, lambda: published.chameleon_shapes(CHAMELEON, layouts.TINY_VQGAN),
        "model.norm.weight", "lm_head.weight",
    ),
    "drafter": (
        drafter, lambda: published.drafter_shapes(layouts.drafter_of(CAPTION)),
        "fc.bias", "layers.0.mlp.down_proj.weight",
    ),
    "Liquid": (
        liquid, lambda: guided_shapes.liquid_shapes(guided_layouts.TINY_LIQUID),
        "model.norm.weight", "model.layers.1.mlp.down_proj.weight",
    ),
    "Emu3": (
        emu3,
        lambda: guided_shapes.emu3_shapes(guided_layouts.TINY_EMU3, guided_layouts.TINY_EMU3_VQ, "original"),
        "model.norm.weight", "model.layers.1.mlp.down_proj.weight",
    ),
    "T5": (
        convert_t5, lambda: published.t5_shapes(layouts.TINY_T5, decoder=True),
        "encoder.final_layer_norm.weight",
        "encoder.block.1.layer.1.layer_norm.weight",
    ),
    "CLIP": (
        clip, lambda: of_table(clip_table(CLIP, HUGGING_FACE)),
        "text_model.encoder.layers.1.layer_norm2.weight",
        "vision_model.post_layernorm.bias",
    ),
    "OpenAI's CLIP": (
        clip, lambda: of_table(clip_table(CLIP, OPENAI)), "ln_final.bias",
        "visual.transformer.resblocks.0.attn.in_proj_weight",
    ),
    "Inception": (
        convert_inception, lambda: of_table(inception_table()) | {"fc.weight": (1008, 2048),
        "fc.bias": (1008,)},
        "Mixed_7c.branch3x3_2b.bn.running_var", "Mixed_6e.branch7x7_2.conv.weight",
    ),
    "VGG": (vgg, lambda: of_table(vgg_table(TINY_VGG)), "features.0.bias", "classifier.3.weight"),
}  # fmt: skip


@cache
def shapes_of(reader):
    return READERS[reader][1]()


def convert(reader, **changes):
    """Gives a reader its tensors with ``changes``: other shapes, or None for missing tensors."""
    claimed = shapes_of(reader) | changes
    return READERS[reader][0]({name: Claimed(shape) for name, shape in claimed.items() if shape is not None})


@pytest.mark.parametrize("reader", READERS)
def test_every_wrong_tensor_is_listed(reader):
    (*_, lost, bent), shapes = READERS[reader], shapes_of(reader)
    with pytest.raises(AssertionError, match="it was read"):
        convert(reader)
    wrong = (*shapes[bent][:-1], shapes[bent][-1] + 1)
    listed = rf"not a.* 1 missing: {lost}; 1 unexpected: extra\.weight; 1 misshapen: {bent} is "
    with refused(listed) as error:
        convert(reader, **{lost: None, bent: wrong, "extra.weight": (2, 2)})
    assert f"{bent} is {list(wrong)}, expected {list(shapes[bent])}" in str(error.value)


@pytest.mark.parametrize("reader", READERS)
def test_whole_numbers_and_flags_are_no_weights(reader):
    read, _, lost, bent = READERS[reader]
    tensors = {name: Claimed(shape) for name, shape in shapes_of(reader).items()}
    tensors[lost].dtype, tensors[bent].dtype = np.dtype(bool), np.dtype(np.int8)
    with refused(r"^2 tensors of this .* hold whole numbers or flags, not weights: ") as error:
        read(tensors)
    assert f"{lost} (bool)" in str(error.value) and f"{bent} (int8)" in str(error.value)


def test_what_training_programs_put_before_names_is_taken_off():
    first = ("tok_embeddings.weight", "model.embed_tokens.weight")
    names = shapes_of("GPT")
    for prefix in ("module.", "_orig_mod.", "model.", "module.model._orig_mod."):
        assert dict(without_prefix({prefix + name: 1 for name in names}, first)) == dict.fromkeys(names, 1)
    for kept in (names, {f"module.{name}": 1 for name in shapes_of("VQ")}, {"a.b": 1, "c": 1}, {}):
        assert dict(without_prefix(kept, first)) == dict(kept)
    with refused("missing or misshapen: tok_embeddings.weight, .*; there are module.norm.weight; give"):
        gpt({"module.norm.weight": Claimed((3,))})


BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
PATCHES = "vision_model.embeddings.position_embedding.weight"
LONG = "9" * 5000
NO_END = "these tensors name a part .*, expected less than"


@pytest.mark.parametrize(("reader", "changes", "match"), [
    # Tensors that decide sizes.
    ("T5", {BIAS: None}, f"missing or misshapen: {BIAS}"),
    ("T5", {"shared.weight": None}, "missing or misshapen: shared.weight"),
    ("GPT", {"tok_embeddings.weight": (0, 0)}, r"missing or misshapen: tok_embeddings\.weight"),
    ("CLIP", {"visual_projection.weight": None}, "missing or misshapen: visual_projection.weight"),
    ("CLIP", {"vision_model.embeddings.class_embedding": None}, "not a CLIP with a vision transformer"),
    ("CLIP", {PATCHES: (8, 64)}, "7 patches are not a square"),
    ("CLIP", {"text_model.embeddings.position_embedding.weight": (16, 65)}, "how many heads a text"),
    # Grouped-query attention; torchvision's Inception, which has other classes.
    ("GPT", {"layers.0.attention.wqkv.weight": (64, 32)}, r"wqkv\.weight is \[64, 32\], expected \[96, 32\]"),
    ("Inception", {"fc.weight": (1000, 2048), "fc.bias": (1000,)}, "2 unexpected: fc.weight, fc.bias"),
    # Norms that fit no number of heads, and absurd layer numbers.
    ("Chameleon", {"model.layers.0.self_attn.q_norm.weight": (3, 16)}, "does not fit width 32"),
    ("GPT", {"layers.1000.attention_norm.weight": (4,)}, NO_END),
    ("GPT", {f"layers.{LONG}.attention_norm.weight": (4,)}, NO_END),
    ("VQ", {f"encoder.conv_blocks.{LONG}.res.0.conv1.weight": (4,)}, NO_END),
], ids=lambda value: value[:20] if isinstance(value, str) else "")  # fmt: skip
def test_impossible_sizes_are_refused(reader, changes, match):
    with refused(match) as error:
        convert(reader, **changes)
    assert len(str(error.value)) < 400


GPT = {"num_heads": 2, "grid": 4}


@pytest.mark.parametrize(("reader", "options", "match"), [
    ("GPT", {"config": None}, "number of heads.*num_heads"),
    ("GPT", {"config": GPT | {"heads": 2}}, "unknown setting heads"),
    ("GPT", {"config": GPT | {"dim": 64}}, "dim is 64 in the config and 32 in the tensors"),
    ("GPT", {"config": GPT | {"num_heads": 3}}, "dim 32 with 3 heads"),
    ("T5", {"config": {"d_model": 32}}, "dim is 32 in the config and 24 in the tensors"),
    ("T5", {"config": {"feed_forward_proj": "relu"}}, "feed_forward_proj is 'relu'"),
    ("drafter", {"target": replace(CAPTION, vocab_size=48)}, "vocab_size is 64, the target's 48"),
    ("drafter", {"target": replace(CAPTION, dim=64)}, "dim is 32, the target's 64"),
    *(
        (reader, {"config": config | changes}, r"num_heads \S+ is not valid: give a whole number from 1 to 4096")
        for reader, config in (("GPT", GPT), ("Liquid", LIQUID), ("Emu3", EMU3))
        for changes in ({"num_heads": 0}, {"num_heads": "two"}, {"num_attention_heads": -2}, {"num_heads": 2.0})
    ),
    ("Liquid", {"config": LIQUID | {"text_config": 7}}, "text_config 7 is not valid: give an object"),
    ("Chameleon", {"order": ORDER[:9]}, "the vocabulary has 9 ids, the embedding table 9216"),
])  # fmt: skip
def test_settings_of_another_model_are_refused(reader, options, match):
    read, *_ = READERS[reader]
    with refused(match):
        read({name: Claimed(shape) for name, shape in shapes_of(reader).items()}, **options)


def test_a_null_text_config_is_ignored():
    assert normalize_settings({"text_config": None, "dim": 3}, JANUS) == {"dim": 3}


@pytest.mark.parametrize("reader", READERS)
def test_tensors_of_something_else_entirely_are_refused(reader):
    read, *_ = READERS[reader]
    with refused(r"these tensors are not a"):
        read({"conv1.weight": Claimed((3, 3))})


def test_a_mismatch_of_many_tensors_is_one_short_line():
    found = {"n" * 10_000: (3,)} | {f"tensor {i}": (i,) for i in range(5000)}
    text = describe_mismatch(found, {"weight": (2,)})
    assert "1 missing: weight; 5001 unexpected: nnn" in text and "and 4981 more" in text and len(text) < 1000
    assert describe_mismatch({"a": (2,)}, {"a": (2,)}) == ""
