"""Pictures in shards, written without decoding: what they keep, and how damaged ones are reported."""

import numpy as np
import pytest

from lantern_jax.apps.sets.plan import SetPlan, begin, shard_paths
from lantern_jax.apps.sets.reading import merge, read_set
from lantern_jax.apps.sets.shards import write_shard
from tests.sets.making import SHARD, a_plan, refused
from tests.tiny_checkpoint import PROMPTS, SIDE, TOKENS

PICTURES = np.random.default_rng(0).integers(0, 256, (SHARD, SIDE, SIDE, 3), np.uint8)


def written(directory, **parts) -> SetPlan:
    """Writes a set of one shard, with one picture per prompt."""
    plan = a_plan(num=1, sums=None, **parts)
    tokens = np.zeros((SHARD, TOKENS), np.int32)
    begin(directory, plan)
    write_shard(directory, plan, 0, PICTURES, tokens, tokens[:, 0])
    return plan


def test_webp_keeps_pixels_and_prompts(tmp_path):
    prompts = ("ein Wald, 森 \"&' <b>\\n", "\t\u2028", "a lake")
    written(tmp_path, format="webp", prompts=prompts)
    assert merge(tmp_path).pictures == SHARD
    for picture, original, prompt in zip(read_set(tmp_path), PICTURES, prompts, strict=True):
        np.testing.assert_array_equal(picture.picture, original)
        assert picture.prompt == prompt


@pytest.mark.parametrize("tar", [True, False])
@pytest.mark.parametrize(("kind", "mark", "pixels"), [("png", b"IDAT", 6), ("webp", b"VP8L", 13)])
def test_a_flipped_byte_in_a_picture_names_shard_and_picture(tmp_path, kind, mark, pixels, tar):
    plan, name = written(tmp_path, format=kind, prompts=PROMPTS[:SHARD], tar=tar), f"00000001.{kind}"
    _, shard = shard_paths(tmp_path, plan, 0)
    file = shard if tar else shard / name
    content = bytearray(file.read_bytes())
    begins = content.index(name.encode()) if tar else 0
    content[content.index(mark, begins) + pixels] ^= 0xFF
    file.write_bytes(content)
    words = f"{shard} is damaged ({name} is not a readable picture): remove it"
    refused(lambda: merge(tmp_path), words)
    refused(lambda: list(read_set(tmp_path)), words)
