"""The shape of a transformer; every model here is one.

Axes: H heads, K key-value heads, E head width, D model width, F feed-forward width.
"""

from dataclasses import dataclass
from functools import partial

import flax.linen as nn

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.sizes import check_sizes

QK_NORMS = ("", "rms", "layer")
ACTIVATIONS = {"silu": nn.silu, "gelu": partial(nn.gelu, approximate=True)}


@dataclass(frozen=True)
class TransformerConfig:
    """Shape of a stack of pre-norm Llama layers (RMSNorm, gated feed-forward).

    Attributes:
        dim, num_layers, num_heads, hidden_dim: D, layers, H, F.
        norm_eps: RMSNorm's epsilon; statistics are float32.
        qk_norm: norm of each head's queries and keys before the rotation: "" (none), "rms" (RMSNorm, one scale for
            all heads) or "layer" (Chameleon: LayerNorm, each head with its own scale and bias).
        qkv_bias: whether queries, keys and values have biases (Qwen2, GLM-4).
        front_layers, back_layers: how many of the first and of the last layers leave the tokens alone that a call names
            (X-Omni's layers for pictures).
        output_norms: whether what attention and the feed-forward layer return is normed before it is added (GLM-4).
        input_norm: False drops the norm before the first layer's attention (EAGLE's drafter).
        final_norm: False returns the last layer's output without a norm (EAGLE's drafter).
        kv_heads: K, the number of key-value heads, each of which serves H / K query heads (grouped-query attention,
            arXiv 2305.13245); None means H. Query heads that share one are neighbours.
        head_width: E; None means D / H.
        activation: of the feed-forward layer's gate: "silu", or "gelu" (Gemma), in its tanh form.
        norm_offset: what a norm adds to its scale, in float32 (Gemma: 1).
    """

    dim: int
    num_layers: int
    num_heads: int
    hidden_dim: int
    norm_eps: float = 1e-5
    qk_norm: str = ""
    input_norm: bool = True
    final_norm: bool = True
    kv_heads: int | None = None
    head_width: int | None = None
    activation: str = "silu"
    norm_offset: int = 0
    qkv_bias: bool = False
    output_norms: bool = False
    front_layers: int = 0
    back_layers: int = 0

    def __post_init__(self):
        check_sizes(self, may_be_zero=("norm_offset", "front_layers", "back_layers"))
        if (self.head_width is None and self.dim % self.num_heads) or self.head_dim % 4:
            raise LanternError(
                f"dim {self.dim} with {self.num_heads} heads: the head width must be a whole multiple of 4"
            )
        if self.qk_norm not in QK_NORMS:
            raise errors.unknown("qk_norm", self.qk_norm, map(repr, QK_NORMS))
        if self.activation not in ACTIVATIONS:
            raise errors.unknown("activation", self.activation, ACTIVATIONS)
        if self.num_heads % self.key_heads or (self.qk_norm == "layer" and self.groups > 1):
            raise LanternError(
                f"{self.key_heads} key-value heads do not fit {self.num_heads} heads"
                f"{' with a norm of each head' if self.qk_norm == 'layer' else ''}: give a divisor, or none"
            )

    @property
    def head_dim(self) -> int:
        return self.head_width or self.dim // self.num_heads

    @property
    def key_heads(self) -> int:
        """K."""
        return self.kv_heads or self.num_heads

    @property
    def groups(self) -> int:
        """Q, the number of query heads that share a key-value head."""
        return self.num_heads // self.key_heads
