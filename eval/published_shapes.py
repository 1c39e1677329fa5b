"""Names and shapes of published checkpoints, written down apart from the converters' tables: each checks the other."""

from collections.abc import Mapping
from typing import Any

from lantern_jax.models.chameleon import ChameleonConfig
from lantern_jax.models.drafter import DrafterConfig
from lantern_jax.models.llamagen import LlamaGenConfig
from lantern_jax.models.vq import VQConfig

Shapes = dict[str, tuple[int, ...]]


def original_gpt_shapes(config: LlamaGenConfig) -> Shapes:
    """A LlamaGen GPT as its authors saved it."""
    dim, hidden = config.dim, config.transformer.hidden_dim
    shapes = _conditioning(config, "cls_embedding") | _linear("tok_embeddings", config.vocab_size, dim)
    for at in (f"layers.{i}" for i in range(config.num_layers)):
        shapes |= _linear(f"{at}.attention.wqkv", 3 * dim, dim) | _linear(f"{at}.attention.wo", dim, dim)
        for part, outputs, inputs in (("w1", hidden, dim), ("w3", hidden, dim), ("w2", dim, hidden)):
            shapes |= _linear(f"{at}.feed_forward.{part}", outputs, inputs)
        shapes |= {f"{at}.attention_norm.weight": (dim,), f"{at}.ffn_norm.weight": (dim,)}
    return shapes | {"norm.weight": (dim,)} | _linear("output", config.vocab_size, dim)


def hugging_face_gpt_shapes(config: LlamaGenConfig) -> Shapes:
    """A LlamaGen GPT as LlamaGen-T2I is on the Hugging Face hub."""
    dim = config.dim
    shapes = _linear("model.embed_tokens", config.vocab_size, dim) | _conditioning(
        config, "model.cls_embedding"
    )
    for i in range(config.num_layers):
        shapes |= _llama_layer(f"model.layers.{i}", dim, config.transformer.hidden_dim)
    return shapes | {"model.norm.weight": (dim,)} | _linear("lm_head", config.vocab_size, dim)


def chameleon_shapes(config: ChameleonConfig, vqgan: VQConfig) -> Shapes:
    """Chameleon as on the Hugging Face hub, with the encoder of its VQGAN inside."""
    shapes = _linear("model.embed_tokens", config.vocab_size, config.dim)
    for i in range(config.num_layers):
        shapes |= _llama_layer(f"model.layers.{i}", config.dim, config.hidden_dim, heads=config.num_heads)
    shapes |= {"model.norm.weight": (config.dim,)}
    for name, shape in vqgan_shapes(vqgan).items():
        if not name.startswith(("decoder.", "loss.")):
            shapes[f"model.vqmodel.{name}"] = shape
    return shapes | _linear("lm_head", config.vocab_size, config.dim)


def drafter_shapes(config: DrafterConfig) -> Shapes:
    """A LANTERN drafter; one with norms of queries and keys is Anole's."""
    shapes = _linear("embed_tokens", config.vocab_size, config.dim)
    shapes |= _linear("fc", config.dim, 2 * config.dim) | {"fc.bias": (config.dim,)}
    heads = config.num_heads if config.qk_norm == "layer" else 0
    return shapes | _llama_layer("layers.0", config.dim, config.hidden_dim, heads=heads, input_norm=False)


def t5_shapes(settings: Mapping[str, Any], decoder: bool) -> Shapes:
    """T5 1.1 of a ``config.json``'s sizes, with or without the decoder and its head."""
    dim = settings["d_model"]
    shapes = _linear("shared", settings["vocab_size"], dim)
    for stack, layers in (("encoder", "num_layers"), ("decoder", "num_decoder_layers")):
        if stack == "encoder" or decoder:
            for i in range(settings[layers]):
                shapes |= _t5_block(stack, i, settings)
            shapes[f"{stack}.final_layer_norm.weight"] = (dim,)
    return shapes | (_linear("lm_head", settings["vocab_size"], dim) if decoder else {})


def llamagen_vq_shapes(config: VQConfig) -> Shapes:
    """LlamaGen's VQ tokenizer."""
    at = {"encoder": "conv_blocks.{i}", "decoder": "conv_blocks.{i}", "block": "res", "mid": ("0", "1", "2")}
    return _autoencoder(config, **at) | {"quantize.codebook_used": (65536,)}


def vqgan_shapes(config: VQConfig) -> Shapes:
    """Chameleon's VQGAN, with the tensors of its training losses."""
    mid = ("block_1", "attn_1", "block_2")
    return _autoencoder(config, encoder="down.{i}", decoder="up.{n}", block="block", mid=mid) | {
        "loss.perceptual_loss.scaling_layer.shift": (1, 3, 1, 1),
        "loss.perceptual_loss.net.slice1.0.weight": (64, 3, 3, 3),
        "loss.perceptual_loss.lin0.model.1.weight": (1, 64, 1, 1),
        "loss.discriminator.main.0.weight": (64, 3, 4, 4),
        "loss.discriminator.main.0.bias": (64,),
    }


def _linear(name: str, outputs: int, inputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs)}


def _llama_layer(at: str, dim: int, hidden: int, *, heads: int = 0, input_norm: bool = True) -> Shapes:
    """A Hugging Face Llama layer; with ``heads``, Chameleon's norms of queries and keys."""
    shapes: Shapes = {}
    for part in ("q", "k", "v", "o"):
        shapes |= _linear(f"{at}.self_attn.{part}_proj", dim, dim)
    for part in ("q", "k") if heads else ():
        for leaf in ("weight", "bias"):
            shapes[f"{at}.self_attn.{part}_norm.{leaf}"] = (heads, dim // heads)
    for part in ("gate", "up"):
        shapes |= _linear(f"{at}.mlp.{part}_proj", hidden, dim)
    shapes |= _linear(f"{at}.mlp.down_proj", dim, hidden)
    if input_norm:
        shapes[f"{at}.input_layernorm.weight"] = (dim,)
    return shapes | {f"{at}.post_attention_layernorm.weight": (dim,)}


def _conditioning(config: LlamaGenConfig, at: str) -> Shapes:
    if config.num_labels:
        return {f"{at}.embedding_table.weight": (config.num_labels, config.dim)}
    return {
        f"{at}.uncond_embedding": (config.caption_length, config.caption_dim),
        f"{at}.cap_proj.fc1.weight": (config.dim, config.caption_dim),
        f"{at}.cap_proj.fc2.weight": (config.dim, config.dim),
    }


def _t5_block(stack: str, i: int, settings: Mapping[str, Any]) -> Shapes:
    dim, heads = settings["d_model"], settings["num_heads"]
    inner, at, shapes = heads * settings["d_kv"], f"{stack}.block.{i}.layer", {}
    attentions = ["SelfAttention"] if stack == "encoder" else ["SelfAttention", "EncDecAttention"]
    for j, attention in enumerate(attentions):
        for part in ("q", "k", "v"):
            shapes |= _linear(f"{at}.{j}.{attention}.{part}", inner, dim)
        shapes |= _linear(f"{at}.{j}.{attention}.o", dim, inner) | {f"{at}.{j}.layer_norm.weight": (dim,)}
    if i == 0:
        buckets = settings["relative_attention_num_buckets"]
        shapes[f"{at}.0.SelfAttention.relative_attention_bias.weight"] = (buckets, heads)
    last = f"{at}.{len(attentions)}"
    for part in ("wi_0", "wi_1"):
        shapes |= _linear(f"{last}.DenseReluDense.{part}", settings["d_ff"], dim)
    shapes |= _linear(f"{last}.DenseReluDense.wo", dim, settings["d_ff"])
    return shapes | {f"{last}.layer_norm.weight": (dim,)}


def _autoencoder(
    config: VQConfig, encoder: str, decoder: str, block: str, mid: tuple[str, str, str]
) -> Shapes:
    """Both halves and the codebook. In a level's name {i} counts from the half's first level, {n} from its last."""
    last, z, width = len(config.ch_mult) - 1, config.z_channels, config.decoder_width
    shapes = _conv("encoder.conv_in", config.ch, 3, 3)
    inputs = config.ch
    for i, mult in enumerate(config.ch_mult):
        at, outputs = "encoder." + encoder.format(i=i, n=last - i), config.ch * mult
        attention = config.level_attention and i == last
        shapes |= _level(at, block, inputs, outputs, config.encoder_blocks, attention)
        shapes |= _conv(f"{at}.downsample.conv", outputs, outputs, 3) if i < last else {}
        inputs = outputs
    shapes |= _middle("encoder.mid", mid, inputs) | _norm("encoder.norm_out", inputs)
    shapes |= _conv("encoder.conv_out", z, inputs, 3)
    inputs = width * config.ch_mult[-1]
    shapes |= _conv("decoder.conv_in", inputs, z, 3) | _middle("decoder.mid", mid, inputs)
    for i, mult in enumerate(reversed(config.ch_mult)):
        at, outputs = "decoder." + decoder.format(i=i, n=last - i), width * mult
        attention = config.level_attention and i == 0
        shapes |= _level(at, block, inputs, outputs, config.decoder_blocks, attention)
        shapes |= _conv(f"{at}.upsample.conv", outputs, outputs, 3) if i < last else {}
        inputs = outputs
    shapes |= _norm("decoder.norm_out", inputs) | _conv("decoder.conv_out", 3, inputs, 3)
    shapes |= {"quantize.embedding.weight": (config.codebook_size, config.codebook_dim)}
    codes = config.codebook_dim
    return shapes | _conv("quant_conv", codes, z, 1) | _conv("post_quant_conv", z, codes, 1)


def _level(at: str, block: str, inputs: int, outputs: int, blocks: int, attention: bool) -> Shapes:
    shapes: Shapes = {}
    for b in range(blocks):
        shapes |= _residual(f"{at}.{block}.{b}", inputs if b == 0 else outputs, outputs)
        shapes |= _attention(f"{at}.attn.{b}", outputs) if attention else {}
    return shapes


def _middle(at: str, names: tuple[str, str, str], width: int) -> Shapes:
    first, attention, second = (f"{at}.{name}" for name in names)
    return _residual(first, width, width) | _attention(attention, width) | _residual(second, width, width)


def _residual(at: str, inputs: int, outputs: int) -> Shapes:
    shapes = _norm(f"{at}.norm1", inputs) | _conv(f"{at}.conv1", outputs, inputs, 3)
    shapes |= _norm(f"{at}.norm2", outputs) | _conv(f"{at}.conv2", outputs, outputs, 3)
    return shapes | (_conv(f"{at}.nin_shortcut", outputs, inputs, 1) if inputs != outputs else {})


def _attention(at: str, width: int) -> Shapes:
    shapes = _norm(f"{at}.norm", width)
    for part in ("q", "k", "v", "proj_out"):
        shapes |= _conv(f"{at}.{part}", width, width, 1)
    return shapes


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _conv(name: str, outputs: int, inputs: int, side: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs, side, side), f"{name}.bias": (outputs,)}
