"""The prompt encoder of a checkpoint, as its family brings it."""

from collections.abc import Sequence

import jax
import numpy as np

from lantern_jax.checkpoints.store import Checkpoint, load_text_encoder
from lantern_jax.families.registry import family_of
from lantern_jax.text.encoders import PromptEncoder, PromptParts


def listed(prompts: str | int | Sequence[str | int]) -> Sequence[str | int]:
    """One prompt as a sequence of one."""
    return [prompts] if isinstance(prompts, str | int | np.integer) else prompts


def prompt_encoder(checkpoint: Checkpoint) -> PromptEncoder:
    """What encodes prompts for a checkpoint's target; a text encoder is read when captions are encoded.

    Raises:
        ValueError: the target's unconditional labels are not those of the checkpoint's vocabulary.
    """

    def read_text_encoder(dtype):
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return load_text_encoder(checkpoint, dtype, device)

    config = checkpoint.target_config
    parts = PromptParts(
        config,
        checkpoint.vocabulary,
        checkpoint.text_tokenizer,
        checkpoint.text_encoder_config,
        read_text_encoder,
    )
    return family_of(config).prompts(parts)
