"""Janus-Pro (arXiv 2501.17811) for image generation: a Llama that reads text and codes, with a separate code head.

In the published model, a code goes in through a small embedding and a two-layer projection. Their output depends on the
code alone, so the converter turns it into rows of the embedding table.
"""

from dataclasses import dataclass

from lantern_jax.io import errors
from lantern_jax.models.heads import HiddenHead
from lantern_jax.models.tokens import GuidedTokensConfig, TokenModel

# Published sizes: layers, heads, D, F.
SIZES = {"1B": (24, 16, 2048, 5632), "7B": (30, 32, 4096, 11008)}


@dataclass(frozen=True)
class JanusConfig(GuidedTokensConfig):
    """A Janus-Pro model; the defaults are the 7B's.

    Attributes:
        head_hidden_dim: width between the two layers of the head; None means ``dim``.
        others: as in ``GuidedTokensConfig``. A picture is grid * grid codes: 24 (384 px) as published.
    """

    dim: int = 4096
    num_layers: int = 30
    num_heads: int = 32
    hidden_dim: int = 11008
    vocab_size: int = 16384 + 102400
    num_codes: int = 16384
    grid: int = 24
    norm_eps: float = 1e-6
    head_hidden_dim: int | None = None


def janus_config(size: str) -> JanusConfig:
    """Returns the config of a published size, "1B" or "7B".

    Raises:
        LanternError: an unknown size.
    """
    if size not in SIZES:
        raise errors.unknown("Janus-Pro size", size, SIZES)
    layers, heads, dim, hidden = SIZES[size]
    return JanusConfig(dim, layers, heads, hidden)


class Janus(TokenModel):
    """The model, a ``TokenModel`` whose head is a ``HiddenHead``."""

    def new_head(self):
        config = self.config
        hidden = config.head_hidden_dim or config.dim
        return HiddenHead(config.num_codes, hidden, self.dtype, self.param_dtype)
