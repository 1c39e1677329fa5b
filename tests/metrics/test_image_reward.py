"""ImageReward against transformers' BLIP on the same small random weights, and its scores one by one."""

import jax
import numpy as np
import pytest

from lantern_jax.apps.metrics.clip import Tower
from lantern_jax.apps.metrics.image_reward import (
    CONTEXT,
    ImageReward,
    RewardConfig,
    convert_image_reward,
    image_reward_scores,
    reward_table,
)
from lantern_jax.apps.metrics.preprocessing import clip_input
from lantern_jax.io.errors import IgnoredWords
from tests.fixtures.tensor_writing import random_tensor, write_safetensors
from tests.metrics.tiny_clip import random_pictures
from tests.refused import refused_each

CONFIG = RewardConfig(Tower(64, 2, 1, 48), Tower(128, 2, 2, 40), 4, 12, 20, CONTEXT + 3)
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "lake", "lab", "the", "by", "at", "dusk")
PROMPTS = ("the lake by night", "", "dusk " * 60)
SIZES = ((12, 12), (30, 25), (12, 40))


def tensors_of(config=CONFIG):
    """Returns random tensors; the head's layers keep numbers of order one, regardless of the published ones."""
    return {name: random_tensor(name, entry.shape) for name, entry in reward_table(config).items()}


def inputs():
    rng = np.random.default_rng(0)
    mask = np.arange(9)[None] < np.array([9, 4, 2])[:, None]
    ids = np.where(mask, rng.integers(0, CONFIG.vocab_size, mask.shape), 0).astype(np.int32)
    return rng.normal(size=(3, CONFIG.side, CONFIG.side, 3)).astype(np.float32), ids, mask


def theirs(tensors):
    """Returns transformers' towers and the head's linear layers with these tensors, as a function."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = [
        {
            "hidden_size": tower.width, "num_attention_heads": tower.heads, "num_hidden_layers": tower.layers,
            "intermediate_size": tower.hidden, "hidden_act": "gelu", "attn_implementation": "eager",
        }
        for tower in (CONFIG.vision, CONFIG.text)
    ]  # fmt: skip
    sizes[0] |= {"image_size": CONFIG.side, "patch_size": CONFIG.patch, "layer_norm_eps": 1e-6}
    sizes[1] |= {
        "encoder_hidden_size": CONFIG.vision.width, "vocab_size": CONFIG.vocab_size, "layer_norm_eps": 1e-12,
        "max_position_embeddings": CONFIG.positions, "is_decoder": True, "pad_token_id": 0, "bos_token_id": 2,
        "sep_token_id": 3, "eos_token_id": 3,
    }  # fmt: skip
    seer = transformers.BlipVisionModel(transformers.BlipVisionConfig(**sizes[0])).eval()
    text = transformers.models.blip.modeling_blip_text.BlipTextModel
    reader = text(transformers.BlipTextConfig(**sizes[1]), add_pooling_layer=False).eval()
    renamed = (
        ("blip.visual_encoder.", ""), ("cls_token", "embeddings.class_embedding"),
        ("pos_embed", "embeddings.position_embedding"), ("patch_embed.proj", "embeddings.patch_embedding"),
        ("blocks.", "encoder.layers."), ("attn.qkv", "self_attn.qkv"), ("attn.proj", "self_attn.projection"),
        (".norm1", ".layer_norm1"), (".norm2", ".layer_norm2"),
    )  # fmt: skip
    seen, read = {}, {}
    for name, values in tensors.items():
        if name.startswith("blip.text_encoder."):
            read[name.removeprefix("blip.text_encoder.")] = torch.tensor(values)
        elif name.startswith("blip.visual_encoder."):
            for old, new in renamed:
                name = name.replace(old, new)
            name = f"post_layernorm{name[4:]}" if name.startswith("norm.") else name
            seen[name] = torch.tensor(values)
    seer.load_state_dict(seen)
    missing, unexpected = reader.load_state_dict(read, strict=False)
    assert not unexpected and all("position_ids" in name for name in missing)

    def run(pictures, ids, mask):
        ids, mask = (torch.tensor(given.astype(np.int64)) for given in (ids, mask))
        with torch.no_grad():
            states = seer(pixel_values=torch.tensor(pictures.transpose(0, 3, 1, 2))).last_hidden_state
            options = {"encoder_hidden_states": states, "is_decoder": False}
            x = reader(input_ids=ids, attention_mask=mask, **options).last_hidden_state[:, 0]
            for number in (0, 2, 4, 6, 7):
                parts = (tensors[f"mlp.layers.{number}.{part}"] for part in ("weight", "bias"))
                x = torch.nn.functional.linear(x, *map(torch.tensor, parts))
        return (x[:, 0].numpy() - 0.16717362830052426) / 1.0333394966054072

    return run


def test_the_networks_scores_match_transformers(assert_close):
    tensors = tensors_of()
    extra = ("blip.vision_proj.weight", "blip.text_proj.bias", "blip.text_encoder.embeddings.position_ids")
    config, params = convert_image_reward(tensors | {name: np.zeros(2) for name in extra})
    assert config == CONFIG
    expected = theirs(tensors)(*inputs())
    assert np.ptp(expected) > 0.1
    assert_close(jax.jit(ImageReward(config).apply)(params, *inputs()), expected)


@pytest.fixture
def folder(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.add_special_tokens(["[CLS]", "[SEP]"])
    words.save(str(tmp_path / "tokenizer.json"))
    shapes = {name: tensor.shape for name, tensor in tensors_of().items()}
    write_safetensors(tmp_path / "ImageReward.safetensors", shapes, np.float32)
    return tmp_path


@pytest.mark.exhaustive
def test_scores_match_those_one_by_one(folder):
    score = image_reward_scores(folder / "ImageReward.safetensors", batch=2)
    with pytest.warns(IgnoredWords, match="ignored by ImageReward: what prompts say after 33 tokens"):
        found = score.of(random_pictures(SIZES), PROMPTS)
    config, params = convert_image_reward(tensors_of())
    numbers = {word: i for i, word in enumerate(WORDS)}
    expected, apply = [], jax.jit(ImageReward(config).apply)
    for picture, prompt in zip(random_pictures(SIZES), PROMPTS, strict=True):
        row = [2, *[numbers.get(word, 1) for word in prompt.split()][: CONTEXT - 2], 3]
        ids = np.array([row], np.int32)
        seen = clip_input(picture, config.side)[None]
        expected.append(apply(params, seen, ids, np.ones(ids.shape, bool))[0])
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert found.dtype == np.float64 and np.ptp(found) > 0.1 and score.name == "ImageReward"
    assert score.of([], []).shape == (0,)
    with pytest.raises(ValueError, match="3 pictures for 1 prompts"):
        score.of(random_pictures(SIZES), PROMPTS[:1])


def test_wrong_files_are_refused(folder):
    import tokenizers

    weights = folder / "ImageReward.safetensors"
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 30}, unk_token="[UNK]"))
    words.save(str(folder / "plain.json"))
    words.add_special_tokens(["[CLS]", "[SEP]"])
    words.save(str(folder / "large.json"))
    write_safetensors(folder / "part.safetensors", {"mlp.layers.0.bias": (3,)}, np.float32)
    large = image_reward_scores(weights, folder / "large.json")
    refused_each({
        "is not a file": lambda: image_reward_scores(weights, folder / "other.json"),
        "is not BERT's tokenizer": lambda: image_reward_scores(weights, folder / "plain.json"),
        "has ids beyond the 20": lambda: large.of(random_pictures([(12, 12)]), ["a"]),
        r"part\.safetensors: .* not a checkpoint of ImageReward": (
            lambda: image_reward_scores(folder / "part.safetensors")
        ),
    })  # fmt: skip
