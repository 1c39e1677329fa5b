"""A ``Generation`` in a notebook."""

import base64
import html
from typing import Any

from lantern_jax.pictures.images import encode_png, grid

# A page with more is slow to scroll.
MOST_PICTURES = 64


def line(generation: Any) -> str:
    """Returns a generation's figures in one line."""
    run = generation.statistics
    parts = [f"{run.pictures} picture{'s' * (run.pictures != 1)}"]
    if generation.pictures is not None:
        parts[0] += " of {1} x {0} pixels".format(*generation.pictures.shape[1:3])
    parts += [
        f"{run.tokens} tokens in {run.rounds} rounds ({run.step_compression:.2f} a round)",
        f"{run.seconds:.2f} s",
    ]
    if run.substituted:
        parts.append(f"{run.substituted:.1%} substituted")
    if run.speedup is not None:
        parts.append(f"{run.speedup:.2f}x as fast as plain decoding, {run.same_tokens:.1%} the same tokens")
    return ", ".join(parts)


def as_html(generation: Any) -> str:
    """Returns pictures with their prompts and the line below; the page loads nothing."""
    figures = f"<p>{html.escape(line(generation))}</p>"
    if generation.pictures is None:
        return figures
    shown = zip(generation.pictures[:MOST_PICTURES], generation.prompts, strict=False)
    cells = "".join(_cell(encode_png(picture), prompt) for picture, prompt in shown)
    left = len(generation.pictures) - MOST_PICTURES
    more = f"<p>and {left} more</p>" if left > 0 else ""
    return f'<div style="display:flex;flex-wrap:wrap;gap:8px">{cells}</div>{more}{figures}'


def as_png(generation: Any) -> bytes | None:
    """Returns all pictures in one PNG; None without pictures."""
    return None if generation.pictures is None else encode_png(grid(generation.pictures))


def _cell(picture: bytes, prompt: str) -> str:
    text = html.escape(prompt)
    data = base64.b64encode(picture).decode()
    return (
        f'<figure style="margin:0;max-width:256px"><img alt="{text}" style="width:100%" '
        f'src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'
    )
