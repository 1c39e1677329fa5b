"""Converts published files to a checkpoint directory.

Every part is read tensor by tensor into the dtype in which it will be stored, the target only as it is written; the
directory appears once all of it has been written and read back.
"""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PyTree

from lantern_jax.apps.convert.conversion import NEIGHBOURS, Conversion, add_drafters, check_codes, open_part
from lantern_jax.apps.convert.given_settings import read_settings, settings_for
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.checkpoints.store import check_new, load, load_shapes, save
from lantern_jax.decoding.acceptance import Codebook
from lantern_jax.decoding.neighbours import nearest_codes
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.families.llamagen.t5_weights import DIALECT as T5
from lantern_jax.families.llamagen.t5_weights import convert_t5, t5_config_from_shapes
from lantern_jax.families.registry import ASSUMED, Family, Format, Published, TargetConfig, family_of
from lantern_jax.io.errors import Assumed, LanternError
from lantern_jax.models.vq import VQModel
from lantern_jax.text.encoders import PromptParts
from lantern_jax.text.t5 import check_tokenizer
from lantern_jax.text.tokenizers import load_tokenizer

_T5 = ("t5", "t5_tokenizer")
# Sources with these names hold no tensors; those are picture tokenizers.
_TEXTS = ("t5_tokenizer", "text_tokenizer")
_TOKENIZERS = ("vq", "vqgan")

Settings = Mapping[str, Any] | None
# The target's config, the published id of every row of its table (None if they are the same), and a function that reads
# the target: that takes longest, so what is wrong with the other parts is reported before.
Begun = tuple[TargetConfig, Int[np.ndarray, " vocab"] | None, Callable[[], Checkpoint]]


def convert_published(
    family: Family, form: Format, config: str | Path | None = None, *, out: str | Path, **given: Any
) -> Path:
    """Converts a family's published files into a checkpoint directory; returns its path.

    Args:
        family: one with a ``Published``.
        form: one of its formats.
        config: a JSON file of settings that shapes do not show: the model's (``{"num_heads": 20, "grid": 32}``),
            or ``{"target": {...}, "drafter": {...}, "text_encoder": {...}}``. A ``config.json`` beside the model
            (unless that is a ``.pt`` file), the drafter or the text encoder is read too.
        out: the new directory.
        given: the format's files: tensor files, or anything else that ``open_tensors`` takes, and text tokenizers. With
            a picture tokenizer the checkpoint can draw, and has a neighbour table for relaxed rules; with a text
            encoder it takes captions. And fields of ``Conversion``.

    Raises:
        LanternError: anything wrong with the files or settings, before anything is written.
    """
    sources = {file.argument: given.pop(file.argument, None) for file in form.files}
    model, published = form.files[0].argument, family.published

    def begin(tensors: dict[str, Any], settings: Settings, conversion: Conversion) -> Begun:
        paths = {part: Path(path) for part, path in sources.items() if path is not None}
        # The settings beside a published .pt file belong to other files.
        beside = None if paths[model].suffix == ".pt" else paths[model]
        settings, source = settings_for(published.dialect, beside, settings, published.more_settings(paths))
        target = published.sizes(tensors[model], {**form.settings, **settings})
        if source == ASSUMED:
            grid, pixels = 2 * target.grid, 2 * target.grid * family.tokenizer().downsampling
            assumed = f"grid {target.grid} assumed: pictures have {target.num_tokens} tokens"
            warnings.warn(
                f"{assumed}; --config '{{\"grid\": {grid}}}' for {pixels} px", Assumed, stacklevel=1
            )
        text_tokenizer = paths.get("text_tokenizer")
        if text_tokenizer is not None:
            # Another model's tokenizer, or a grid that prompts cannot name, is an error now.
            family.prompts(PromptParts(target, text_tokenizer=text_tokenizer)).encode(["a"])
        inside = published.tokenizer_inside(tensors[model])
        if inside:
            tensors.setdefault("vqgan", inside)
        order = family.published_order(target, text_tokenizer)
        # Its arrays are read one by one as they are written: whole, it may need more memory than there is.
        reading = {"dtype": jnp.dtype(conversion.dtype), "shapes": family.shapes(target)["params"]}
        reading |= {} if order is None else {"order": order}
        read = partial(published.read, tensors[model], target, **reading)
        return target, order, partial(_checkpoint, published, read, conversion, source, text_tokenizer)

    return _convert(begin, sources, config, out, given, read_tokenizer=published.read_tokenizer)


def add_parts(
    checkpoint: str | Path,
    config: str | Path | None = None,
    *,
    kind: str = "eagle",
    out: str | Path,
    **given: Any,
) -> Path:
    """Writes a checkpoint directory again with a drafter or a text encoder more; returns its path.

    Args:
        checkpoint: the directory of the target.
        config, out: as for ``convert_published``.
        kind: what ``drafter`` is, a name in ``DRAFTERS``; it replaces any other of its kind.
        given: the file ``drafter``, or ``t5`` and ``t5_tokenizer`` for a target that takes captions; fields of
            ``Conversion``.

    Raises:
        LanternError: as ``convert_published``; a kind that cannot be read, or parts made for another target.
    """
    if kind not in DRAFTERS or DRAFTERS[kind].read is None:
        known = ", ".join(name for name, one in DRAFTERS.items() if one.read is not None)
        raise LanternError(f"no converter for a drafter of the kind {kind!r}: choose one of {known}")
    parts = {"drafter": "drafter" if kind == "eagle" else kind} | {name: name for name in _T5}
    sources = {part: given.pop(name, None) for name, part in parts.items()}

    def begin(*_: Any) -> Begun:
        old = load_shapes(checkpoint)
        order = family_of(old.target_config).published_order(old.target_config, old.text_tokenizer)
        return old.target_config, order, partial(load, checkpoint, streamed=True)

    return _convert(
        begin, sources, config, out, given, "drafter" if sources["t5"] is None else "text_encoder"
    )


def make_codebook(config, params, neighbours: int = NEIGHBOURS, neighbour_space: str = "decoder") -> Codebook:
    """Makes a VQ tokenizer's codebook: the neighbour table and the codes as the decoder sees them.

    Args:
        config, params: a ``VQConfig`` and ``VQModel`` parameters.
        neighbours: columns of the table, at most the number of codes less one.
        neighbour_space: "decoder" or "raw"; distances are the decoder's in either case.
    """
    codes = jnp.asarray(VQModel(config).apply(params, method="code_vectors"), jnp.float32)
    space = codes if neighbour_space == "decoder" else jnp.asarray(params["params"]["codebook"], jnp.float32)
    table = nearest_codes(space, min(neighbours, config.codebook_size - 1))
    return Codebook(neighbours=np.asarray(table), codes=np.asarray(codes))


def _checkpoint(
    published: Published,
    read: Callable[[], tuple[TargetConfig, PyTree]],
    conversion: Conversion,
    source: str,
    text_tokenizer: Path | None,
) -> Checkpoint:
    """Reads a target; returns its checkpoint, with its usual settings and a note on where its grid is from."""
    target, params = read()
    usual = published.defaults(target)
    return Checkpoint(
        published.model(target), target, params, text_tokenizer=text_tokenizer,
        defaults={**usual, "top_k": min(usual["top_k"], target.num_codes)},
        metadata={"neighbour_space": conversion.neighbour_space, "grid_from": source},
    )  # fmt: skip


def _convert(
    begin: Callable[[dict[str, Any], Settings, Conversion], Begun],
    sources: Mapping[str, str | Path | None],
    config: str | Path | None,
    out: str | Path,
    options: Mapping[str, Any],
    alone: str = "target",
    read_tokenizer: Callable[..., tuple[Any, Any]] | None = None,
) -> Path:
    """Writes a checkpoint with every part for which files are given.

    Args:
        begin: (opened files, to which it may add; settings of the target; conversion) -> ``Begun``.
        sources: part -> its file. Parts are "vq" or "vqgan", "drafter" (EAGLE's) or another kind of drafter, "t5",
            "t5_tokenizer", and what ``begin`` reads.
        alone: the part to which a config file without parts applies.
        read_tokenizer: the picture tokenizer's reader.
    """
    conversion = Conversion(**options)
    check_new(out, conversion.overwrite)
    settings = read_settings(config, alone)
    paths = {part: Path(path) for part, path in sources.items() if path is not None}
    if ("t5" in paths) != ("t5_tokenizer" in paths):
        raise LanternError("a text encoder and its tokenizer go together: give both --t5 and --t5-tokenizer")
    # Before the first tensor is read, so that a wrong name is an error immediately.
    tensors = {
        part: open_part(part, path, conversion.weights) for part, path in paths.items() if part not in _TEXTS
    }
    target, order, whole = begin(tensors, settings.get("target"), conversion)
    if "t5" in paths:
        if not family_of(target).text_width(target):
            raise LanternError("the target is not caption-conditional: it takes no text encoder")
        chosen, _ = settings_for(T5, paths["t5"], settings.get("text_encoder"))
        encoder, tokenizer = t5_config_from_shapes(tensors["t5"], chosen), paths["t5_tokenizer"]
        check_tokenizer(load_tokenizer(tokenizer), encoder.vocab_size, tokenizer)
    drafters, changes = {}, {}
    for part in tensors.keys() & {"drafter", *DRAFTERS}:
        kind = "eagle" if part == "drafter" else part
        read, chosen = DRAFTERS[kind], settings.get("drafter")
        if read.dialect is not None:
            chosen, _ = settings_for(read.dialect, paths[part], chosen)
        drafters[kind] = read.read(
            tensors[part], chosen, target=target, order=order, dtype=jnp.dtype(conversion.dtype)
        )
    pictures = [read_tokenizer(tensors[part]) for part in _TOKENIZERS if part in tensors]
    checkpoint = whole()
    if "t5" in paths:
        _, params = convert_t5(tensors["t5"], encoder, dtype=jnp.dtype(conversion.dtype))
        changes |= {
            "text_encoder_config": encoder,
            "text_encoder_params": params,
            "text_tokenizer": tokenizer,
        }
    for made, params in pictures:
        check_codes(target, made)
        params = {"params": params}
        codebook = make_codebook(made, params, conversion.neighbours, conversion.neighbour_space)
        changes |= {"tokenizer_config": made, "tokenizer_params": params, "codebook": codebook}
    checkpoint = add_drafters(checkpoint, drafters)
    names = checkpoint.metadata.get("converted_from", {}) | {part: path.name for part, path in paths.items()}
    changes["metadata"] = checkpoint.metadata | {"converted_from": names}
    return _write(out, dataclasses.replace(checkpoint, **changes), conversion)


def _write(out: str | Path, checkpoint: Checkpoint, conversion: Conversion) -> Path:
    drafters = [params for _, params in checkpoint.drafters.values()]
    params = (checkpoint.target_params, drafters, checkpoint.tokenizer_params, checkpoint.text_encoder_params)
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    done = 0

    def report(written: int) -> None:
        nonlocal done
        done = min(done + written, total)
        conversion.progress(done, total)

    return save(out, checkpoint, overwrite=conversion.overwrite, report=report)
