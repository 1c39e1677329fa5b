"""Records the golden cases of models of ``GuidedTokens``: ``python -m tests.golden_record [NAME ...]``.

Each is a small random configuration of the published module, whose weights are made from their names. Modules are
those of transformers; Lumina-mGPT 2.0's are in a clone of Alpha-VLLM/Lumina-mGPT-2.0, which the variable LUMINA2 names,
and run with transformers 4.46.2. Recorded are logits with guidance over left-padded prompts of unequal lengths and
several codes, and decoded pictures. The versions of what computed them are in the case.
"""

import importlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import torch
import transformers

from tests.golden_cases import DEFAULT_DIRECTORY, golden_weight

GUIDANCE = (5.0, 2.0)
PROMPT, LENGTHS, OTHER_LENGTHS, CODES = 6, (6, 4), (6, 3), 5
_TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


def fill(model: torch.nn.Module) -> dict[str, list[int]]:
    """Gives a model the weights of its tensors' names; returns {name: shape}."""
    shapes, state, seen = {}, model.eval().state_dict(), set()
    for name, tensor in state.items():
        # Of tied tensors the first one is published.
        if tensor.is_floating_point() and tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            shapes[name] = list(tensor.shape)
            tensor.copy_(torch.from_numpy(golden_weight(name, tuple(tensor.shape), 0)))
    model.load_state_dict(state)
    return shapes


def guided_logits(
    language, head: Callable, text, code, words: int, num_codes: int, last: int | None = None
) -> dict[str, np.ndarray]:
    """Returns prompts, codes and logits [B, codes + 1, V] of a language model.

    ``text`` and ``code`` give the embeddings of published text ids and of codes, ``head`` logits of codes. ``last`` is
    the id of every prompt's last token; None for any.
    """
    rng = np.random.default_rng(0)
    codes = rng.integers(0, num_codes, (len(LENGTHS), CODES))
    found, logits = {"codes": codes, "guidance": np.array(GUIDANCE, np.float32)}, []
    for name, lengths in (("prompt", LENGTHS), ("unconditional", OTHER_LENGTHS)):
        mask = np.arange(PROMPT)[None] >= PROMPT - np.array(lengths)[:, None]
        ids = np.where(mask, rng.integers(0, words, mask.shape), 0)
        ids[:, -1] = ids[:, -1] if last is None else last
        seen = np.concatenate([mask, np.ones(codes.shape, bool)], axis=1)
        positions = np.maximum(np.cumsum(seen, axis=1) - 1, 0)
        embedded = torch.cat([text(torch.from_numpy(ids)), code(torch.from_numpy(codes))], dim=1)
        hidden = language(
            inputs_embeds=embedded,
            attention_mask=torch.from_numpy(seen.astype(np.int64)),
            position_ids=torch.from_numpy(positions),
            use_cache=False,
        ).last_hidden_state
        logits.append(head(hidden[:, PROMPT - 1 :]).numpy())
        found |= {f"{name}_ids": ids, f"{name}_mask": mask}
    conditional, unconditional = logits
    scale = found["guidance"][:, None, None]
    return found | {"logits": unconditional + scale * (conditional - unconditional)}


def janus():
    settings = {
        "text_config": {"model_type": "llama", "vocab_size": 60, "rms_norm_eps": 1e-6, **_TEXT},
        "vision_config": {
            "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 16,
            "projection_dim": 32, "num_image_tokens": 4,
        },
        "vq_config": {
            "embed_dim": 4, "num_embeddings": 24, "latent_channels": 32, "base_channels": 32,
            "channel_multiplier": [1, 2], "num_res_blocks": 1, "projection_dim": 32, "image_token_embed_dim": 32,
        },
    }  # fmt: skip
    model = transformers.JanusForConditionalGeneration(transformers.JanusConfig(**settings))
    shapes, parts = fill(model), model.model
    text, code = parts.language_model.embed_tokens, model.prepare_embeddings_for_image_generation
    found = guided_logits(parts.language_model, parts.generation_head, text, code, 60, 24)
    found["picture_codes"] = np.random.default_rng(1).integers(0, 24, (1, 4))
    found["decoded_nhwc"] = model.decode_image_tokens(torch.from_numpy(found["picture_codes"])).numpy()
    return {"model_type": "janus", **settings}, shapes, found


def emu3():
    ids = {"<|extra_200|>": 9, "<image>": 3} | {f"<|visual token {i:06d}|>": 60 + i for i in range(24)}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    settings = {
        "text_config": {
            "model_type": "emu3_text_model", "vocab_size": 84, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
            "rope_theta": 1e6, **_TEXT, **special,
        },
        "vq_config": {
            "codebook_size": 24, "embed_dim": 4, "latent_channels": 4, "base_channels": 32, "hidden_size": 64,
            "channel_multiplier": [1, 2], "num_res_blocks": 1, "attn_resolutions": [1],
        },
    }  # fmt: skip
    model = transformers.Emu3ForConditionalGeneration(
        transformers.Emu3Config(**settings, vocabulary_map=ids, tie_word_embeddings=False)
    )
    shapes, parts = fill(model), model.model
    text = parts.text_model.embed_tokens
    found = guided_logits(
        parts.text_model,
        lambda hidden: model.lm_head(hidden)[..., 60:],
        text,
        lambda codes: text(codes + 60),
        60,
        24,
    )
    found["picture_codes"] = np.random.default_rng(1).integers(0, 24, (2, 9))
    codes = torch.from_numpy(found["picture_codes"]).reshape(2, 3, 3)
    found["decoded_nhwc"] = parts.vqmodel.decode(codes).numpy().transpose(0, 2, 3, 1)
    pictures = np.random.default_rng(2).uniform(-1, 1, (2, 3, 6, 6)).astype(np.float32)
    encoded = parts.vqmodel.encode(torch.from_numpy(pictures), torch.tensor([[6, 6]] * 2))
    found["image_nhwc"] = pictures.transpose(0, 2, 3, 1)
    found["image_codes"] = torch.stack(list(encoded.image_tokens)).reshape(2, 9).numpy()
    told = {"row_end": 9, "frame_end": 10, "image_end": 11, "num_codes": 24, "grid": 3}
    return {"model_type": "emu3", **settings, "told": told}, shapes, found


def liquid():
    settings = {
        "vocab_size": 84, "num_key_value_heads": 4, "head_dim": 12, "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh", **_TEXT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    model = transformers.GemmaForCausalLM(transformers.GemmaConfig(**settings))
    shapes, text = fill(model), model.model.embed_tokens
    found = guided_logits(
        model.model,
        lambda hidden: model.lm_head(hidden)[..., 60:],
        text,
        lambda codes: text(codes + 60),
        60,
        24,
    )
    return (
        {"model_type": "liquid", "text_config": settings, "told": {"num_codes": 24, "grid": 3}},
        shapes,
        found,
    )


def lumina2():
    clone = Path(os.environ["LUMINA2"])
    sys.path[:0] = [str(clone / "lumina_mgpt"), str(clone)]
    # From these it takes a base class, and the part that reads pictures.
    sys.modules["pytorch_lightning"] = SimpleNamespace(LightningModule=torch.nn.Module)
    sys.modules["torchvision"] = SimpleNamespace(transforms=None)
    from model.chameleon.configuration_chameleon import ChameleonConfig
    from model.chameleon.modeling_chameleon import ChameleonForConditionalGeneration
    from movqgan.models.vqgan import MOVQ

    settings = {
        "vocab_size": 85, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 1e4, **_TEXT,
        "model_parallel_size": 1, "swin_norm": False, "mask_image_logits": False,
    }  # fmt: skip
    config = ChameleonConfig(**settings, vocabulary_map={"<image>": 3}, attn_implementation="eager")
    model = ChameleonForConditionalGeneration(config)
    del model.model.vqmodel
    sizes = {
        "double_z": False, "z_channels": 4, "resolution": 8, "in_channels": 3, "out_ch": 3, "ch": 32,
        "ch_mult": [1, 2], "num_res_blocks": 1, "attn_resolutions": [4], "dropout": 0.0,
    }  # fmt: skip
    vqgan = MOVQ(sizes, n_embed=24, embed_dim=4)
    shapes, text = fill(model) | fill(vqgan), model.model.embed_tokens
    found = guided_logits(
        model.model,
        lambda hidden: model.lm_head(hidden)[..., 60:84],
        text,
        lambda codes: text(codes + 60),
        60,
        24,
    )
    found["picture_codes"] = np.random.default_rng(1).integers(0, 24, (1, 9))
    found["decoded_nhwc"] = vqgan.decode_code(torch.from_numpy(found["picture_codes"]), 3, 3).numpy()
    found["decoded_nhwc"] = found["decoded_nhwc"].transpose(0, 2, 3, 1)
    pictures = np.random.default_rng(2).uniform(-1, 1, (2, 3, 6, 6)).astype(np.float32)
    found["image_nhwc"] = pictures.transpose(0, 2, 3, 1)
    found["image_codes"] = vqgan.encode(torch.from_numpy(pictures))[2][2].reshape(2, 9).numpy()
    told = {"num_codes": 24, "grid": 4, "row_end": 9, "image_end": 10, "begin": 2, "first_code": 60}
    return {"model_type": "lumina2", "text_config": settings, "told": told}, shapes, found | lumina2_prompts()


def lumina2_prompts(width: int = 64, height: int = 32) -> dict[str, np.ndarray]:
    """Returns the published ids of prompts and of the picture's header, -1 behind them."""
    from data import item_processor

    from tests.fixtures.guided_layouts import write_lumina2_tokenizer
    from tests.text.test_guided import PROMPTS

    item_processor.get_movqgan_model = lambda *given, **more: None
    with tempfile.TemporaryDirectory() as folder:
        write_lumina2_tokenizer(Path(folder) / "tokenizer.json")
        processor = item_processor.FlexARItemProcessor(folder)
    sides = (processor.get_n_grids_token(side // processor.patch_size) for side in (height, width))
    header = [processor.token2id(name) for name in (processor.image_start_token, *sides)]
    rows = []
    for prompt in PROMPTS:
        task = f"Generate an image of {width}x{height} according to the following prompt:\n{prompt}"
        said = [{"from": "human", "value": task}, {"from": "gpt", "value": None}]
        rows.append(processor.process_item({"image": [], "conversations": said}) + header)
    whole = np.full((len(rows), max(map(len, rows))), -1)
    for line, row in zip(whole, rows, strict=True):
        line[: len(row)] = row
    return {"wide_prompts": whole, "wide_header": np.array(header)}


def glm_image():
    """The prompts' and all codes' logits, positions and padding as the published module makes them."""
    text = {
        "vocab_size": 84, "vision_vocab_size": 28, "rms_norm_eps": 1e-5, "pad_token_id": 0, "eos_token_id": 25, **_TEXT,
        "num_attention_heads": 2, "num_key_value_heads": 1,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2],
        },
    }  # fmt: skip
    settings = {
        "text_config": text,
        "vision_config": {"hidden_size": 16, "depth": 1, "num_heads": 2, "intermediate_size": 16, "image_size": 32},
        "vq_config": {"embed_dim": 8, "num_embeddings": 24, "latent_channels": 8},
        "image_start_token_id": 24, "image_end_token_id": 25, "image_token_id": 80,
    }  # fmt: skip
    model = transformers.GlmImageForConditionalGeneration(transformers.GlmImageConfig(**settings))
    shapes, (rows, columns) = fill(model), (3, 2)
    preview = transformers.GlmImageProcessor._get_target_shape(None, 32 * rows, 32 * columns)[2:]
    rng, count = np.random.default_rng(0), rows * columns + preview[0] * preview[1]
    codes = rng.integers(0, 24, (len(LENGTHS), count))
    mask = np.arange(PROMPT)[None] >= PROMPT - np.array(LENGTHS)[:, None]
    ids = np.where(mask, rng.integers(26, 80, mask.shape), 0)
    grids = torch.tensor([[1, rows, columns], [1, *preview]] * len(ids))
    seen = np.concatenate([mask, np.ones(codes.shape, bool)], axis=1).astype(np.int64)
    first = model(
        input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(seen[:, :PROMPT]), image_grid_thw=grids,
        images_per_sample=torch.tensor([2] * len(ids)), use_cache=True,
    )  # fmt: skip
    then = model(
        input_ids=torch.from_numpy(codes), attention_mask=torch.from_numpy(seen), cache=first.cache, use_cache=True,
        image_grid_thw=grids, images_per_sample=torch.tensor([2] * len(ids)),
    )  # fmt: skip
    logits = torch.cat([first.logits[:, -1:], then.logits], dim=1)[..., :24].numpy()
    found = {"prompt_ids": ids, "prompt_mask": mask, "codes": codes, "logits": logits}
    told = {"num_codes": 24, "grid": rows, "columns": columns}
    return {"model_type": "glm_image", **settings, "told": told}, shapes, found


def x_omni():
    """By the authors' ``modeling_xomni.py`` of X-Omni/X-Omni-En, in a folder that XOMNI names; transformers 4.52."""
    clone = Path(os.environ["XOMNI"])
    sys.path[:0] = [str(clone.parent)]
    for name in ("siglip_tokenizer", "siglip_flux", "vit"):
        sys.modules[f"{clone.name}.modeling_{name}"] = MagicMock()
    modeling = importlib.import_module(f"{clone.name}.modeling_xomni")
    settings = {
        **_TEXT, "num_hidden_layers": 4, "vocab_size": 60, "mm_vocab_size": 28, "image_vocab_size": 24,
        "num_mm_adap_layers": 1, "num_mm_head_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "tie_word_embeddings": False,
    }  # fmt: skip
    config = modeling.XOmniConfig(**settings, attn_implementation="eager")
    model = modeling.XOmniForCausalLM(config)
    model.model.has_sliding_layers = False
    shapes, embed = fill(model), model.model.embed_tokens
    # Prompts end with a mark of pictures, whose ids follow the codes.
    found = guided_logits(
        model.model, lambda hidden: model.mm_head(hidden)[..., :24], lambda ids: embed(ids + 0),
        lambda codes: embed(codes + 60), 60, 24, last=60 + 26,
    )  # fmt: skip
    return {"model_type": "x_omni", "text_config": settings, "told": {"grid": 3}}, shapes, found


CASES = {
    "janus": janus,
    "emu3": emu3,
    "liquid": liquid,
    "lumina2": lumina2,
    "glm_image": glm_image,
    "x_omni": x_omni,
}


def main(names: list[str], directory: Path = DEFAULT_DIRECTORY) -> None:
    for name in names or CASES:
        with torch.no_grad():
            config, tensors, arrays = CASES[name]()
        versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        case = {
            "config": config,
            "weight_seed": 0,
            "versions": {**versions, "python": platform.python_version()},
            "tensors": tensors,
        }
        (directory / f"{name}.json").write_text(json.dumps(case, indent=1) + "\n")
        np.savez_compressed(directory / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main(sys.argv[1:])
