"""Emu3-Gen (arXiv 2409.18869) for image generation: a Llama with grouped queries, one vocabulary of text and codes."""

from dataclasses import dataclass

from lantern_jax.models.tokens import RowsConfig


@dataclass(frozen=True)
class Emu3Config(RowsConfig):
    """An Emu3 model; the defaults are those of the 8B.

    Attributes:
        row_end, frame_end, image_end: published ids of the tokens after each row of codes, after the last row's end,
            and after that.
        others: as in ``RowsConfig``. A picture has 90 x 90 codes (720 px) as published.
    """

    dim: int = 4096
    num_layers: int = 32
    num_heads: int = 32
    hidden_dim: int = 14336
    vocab_size: int = 184622
    num_codes: int = 32768
    grid: int = 90
    norm_eps: float = 1e-5
    rope_base: float = 1_000_000.0
    kv_heads: int | None = 8
    row_end: int = 151846
    frame_end: int = 151847
    image_end: int = 151853

    ends = ("row_end", "frame_end", "image_end")
    # Of the 9216 positions in its published config, prompts take up to 1024. Its area is 8100 codes; 4:3 takes 8112 and
    # 16:9 takes 8160. Its own program draws any ratio: a side may be as long as our configs allow.
    most_codes, most_a_side = 8192, 192
