"""Converts Chameleon's published VQGAN (``vqgan.ckpt`` of Anole and Lumina-mGPT) to `VQModel` parameters.

Tensor names are those of taming-transformers: `encoder.down.{l}.block.{b}`, `.downsample.conv`,
`encoder.mid.{block_1,attn_1,block_2}`, `decoder.up.{l}.block.{b}`, `.upsample.conv`, where the decoder's levels are
numbered like the encoder's, finest first. Codes are not normalized; attention is in the middle only.
"""

from functools import partial

from lantern_jax.families.llamagen_vq_weights import VQLayout, convert_vq

_MIDDLE = {"0": "block_1", "1": "attn_1", "2": "block_2"}


def taming_place(path: tuple[str, ...], levels: int, *, coarsest_first: bool = False) -> str:
    """Returns the place of a module in taming-transformers' names; with ``coarsest_first``, the decoder's levels are
    numbered like ours."""
    parts = []
    for part in path:
        kind, _, number = part.rpartition("_")
        if kind == "level" and path[0] == "encoder":
            parts += ["down", number]
        elif kind == "level":
            parts += ["up", number if coarsest_first else str(levels - 1 - int(number))]
        elif kind in ("res", "attn"):
            parts += ["block" if kind == "res" else "attn", number]
        elif part in ("downsample", "upsample"):
            parts += [part, "conv"]
        else:
            parts.append(_MIDDLE.get(part, part))
    return ".".join(parts)


# Ignored: the networks that the training loss used, a perceptual one and the discriminator.
CHAMELEON = VQLayout("Chameleon VQGAN", taming_place, False, (r"loss\..*",))


convert_vqgan = partial(convert_vq, layout=CHAMELEON)
