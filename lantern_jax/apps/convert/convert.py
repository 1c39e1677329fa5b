"""Converts published files to a checkpoint directory.

Every part is read tensor by tensor into the dtype in which it will be stored; the directory appears once all of it has
been written and read back.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PyTree

from lantern_jax.apps.convert.conversion import NEIGHBOURS, Conversion, check_codes, llamagen_grid, open_part
from lantern_jax.apps.convert.given_settings import read_settings, settings_for
from lantern_jax.apps.convert.published import PUBLISHED
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.checkpoints.store import check_new, load, load_shapes, save
from lantern_jax.decoding.acceptance import Codebook
from lantern_jax.decoding.neighbours import nearest_codes
from lantern_jax.families.chameleon_vq_weights import convert_vqgan
from lantern_jax.families.chameleon_weights import chameleon_config_from_shapes, convert_chameleon
from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.families.llamagen_vq_weights import convert_vq
from lantern_jax.families.llamagen_weights import convert_gpt, gpt_config_from_shapes
from lantern_jax.families.registry import FAMILIES, TargetConfig, family_of
from lantern_jax.families.t5_weights import convert_t5, t5_config_from_shapes
from lantern_jax.io.errors import LanternError
from lantern_jax.models.chameleon import ChameleonConfig
from lantern_jax.models.llamagen import LlamaGenConfig
from lantern_jax.models.t5 import T5Config
from lantern_jax.models.vq import VQModel
from lantern_jax.text.chameleon import ChameleonVocabulary
from lantern_jax.text.encoders import PromptParts
from lantern_jax.text.t5 import check_tokenizer
from lantern_jax.text.tokenizers import load_tokenizer

# The settings the models are usually sampled with, by what they are conditioned on or their layout.
_DEFAULTS = {
    "class": {"guidance": 4.0, "top_k": 2000, "temperature": 1.0},
    "caption": {"guidance": 7.5, "top_k": 1000, "temperature": 1.0},
    "anole": {"guidance": 3.0, "top_k": 2000, "temperature": 1.0},
    "lumina": {"guidance": 4.0, "top_k": 2000, "temperature": 1.0},
}
_MODELS = {"anole": "Anole", "lumina": "Lumina-mGPT"}
# Sources with these names hold no tensors.
_TEXTS = ("t5_tokenizer", "text_tokenizer")
_TOKENIZERS = {"vq": convert_vq, "vqgan": convert_vqgan}

Settings = Mapping[str, Any] | None
# The target's config, the published id of every row of its table (None if they are the same), and a function that reads
# the target: that takes longest, so what is wrong with the other parts is reported before.
Begun = tuple[TargetConfig, Int[np.ndarray, " vocab"] | None, Callable[[], Checkpoint]]


def convert_llamagen(
    gpt: str | Path,
    vq: str | Path | None = None,
    drafter: str | Path | None = None,
    config: str | Path | None = None,
    *,
    t5: str | Path | None = None,
    t5_tokenizer: str | Path | None = None,
    out: str | Path,
    **options: Any,
) -> Path:
    """Converts LlamaGen's published files into a checkpoint directory; returns its path.

    Args:
        gpt, vq, drafter, t5: tensor files, or anything else that ``open_tensors`` takes. With ``vq`` the checkpoint can
            draw, and has a neighbour table for relaxed rules; with ``t5`` (Flan-T5-XL) it takes captions. A
            ``config.json`` beside the GPT (unless that is a ``.pt`` file), the drafter or the text encoder is read.
        config: a JSON file of settings that shapes do not show: the GPT's (``{"num_heads": 20, "grid": 32}``),
            or ``{"target": {...}, "drafter": {...}, "text_encoder": {...}}``.
        t5_tokenizer: T5's ``spiece.model`` or ``tokenizer.json``.
        out: the new directory.
        options: fields of ``Conversion``.

    Raises:
        LanternError: anything wrong with the files or settings, before anything is written.
    """

    def begin(tensors: dict[str, Any], settings: Settings, conversion: Conversion) -> Begun:
        # The settings beside a published .pt file belong to other files.
        settings, source = settings_for(LlamaGenConfig, None if Path(gpt).suffix == ".pt" else gpt, settings)
        target = gpt_config_from_shapes(tensors["gpt"], settings)
        if "grid" not in settings:
            grid, source = llamagen_grid(gpt)
            target = dataclasses.replace(target, grid=grid or target.grid)
        kind = "class" if target.num_labels else "caption"
        read = partial(convert_gpt, tensors["gpt"], target, **conversion.reading("the GPT"))
        model = f"LlamaGen, {kind}-conditional"
        return target, None, partial(_checkpoint, read, model, _DEFAULTS[kind], conversion, source)

    sources = {"gpt": gpt, "vq": vq, "drafter": drafter, "t5": t5, "t5_tokenizer": t5_tokenizer}
    return _convert(begin, sources, config, out, options)


def convert_chameleon_files(
    model: str | Path,
    vqgan: str | Path | None = None,
    drafter: str | Path | None = None,
    config: str | Path | None = None,
    *,
    text_tokenizer: str | Path,
    layout: str,
    out: str | Path,
    **options: Any,
) -> Path:
    """Converts the published files of Anole or Lumina-mGPT into a checkpoint directory; returns its path.

    Args:
        model: the folder with the Hugging Face shards, or their index. Its ``config.json`` is read.
        vqgan: Chameleon's ``vqgan.ckpt``. With it the checkpoint can draw, and has a neighbour table.
        drafter: a tensor file or its folder; a ``config.json`` beside it is read.
        config: as for ``convert_llamagen``.
        text_tokenizer: Chameleon's ``text_tokenizer.json``, which also gives the codebook's token ids.
        layout: "anole" or "lumina".
        out: the new directory.
        options: fields of ``Conversion``.

    Raises:
        LanternError: anything wrong with the files or settings, before anything is written.
    """

    def begin(tensors: dict[str, Any], settings: Settings, conversion: Conversion) -> Begun:
        embedding = tensors["model"].get("model.embed_tokens.weight")
        rows = () if embedding is None else embedding.shape[:1]
        vocabulary = ChameleonVocabulary.from_file(text_tokenizer, *rows)
        settings, source = settings_for(ChameleonConfig, model, settings)
        target = chameleon_config_from_shapes(tensors["model"], settings, vocabulary.num_codes, layout)
        _check_prompts(target, text_tokenizer)
        reading = conversion.reading("the model")
        read = partial(convert_chameleon, tensors["model"], target, order=vocabulary.order, **reading)
        whole = partial(
            _checkpoint, read, _MODELS[layout], _DEFAULTS[layout], conversion, source, text_tokenizer
        )
        return target, vocabulary.order, whole

    sources = {"model": model, "vqgan": vqgan, "drafter": drafter, "text_tokenizer": text_tokenizer}
    return _convert(begin, sources, config, out, options)


def convert_guided_files(
    model: str | Path,
    vqgan: str | Path | None = None,
    config: str | Path | None = None,
    *,
    text_tokenizer: str | Path,
    family: str,
    out: str | Path,
    **options: Any,
) -> Path:
    """Converts the published files of a model of ``PUBLISHED`` into a checkpoint directory; returns its path.

    Args:
        model: the folder with the shards, or their index; its ``config.json`` is read.
        vqgan: the picture tokenizer, if it is not among the model's tensors.
        config: as for ``convert_llamagen``.
        text_tokenizer: the model's ``tokenizer.json``.
        family: a name in ``PUBLISHED``.
        out: the new directory.
        options: fields of ``Conversion``.

    Raises:
        LanternError: anything wrong with the files or settings, before anything is written.
    """
    published = PUBLISHED[family]

    def begin(tensors: dict[str, Any], settings: Settings, conversion: Conversion) -> Begun:
        told = published.told(Path(text_tokenizer))
        settings, source = settings_for(FAMILIES[family].config, model, settings, told)
        target = published.sizes(tensors["model"], settings)
        _check_prompts(target, text_tokenizer)
        inside = published.tokenizer_inside(tensors["model"])
        if inside:
            tensors.setdefault("vqgan", inside)
        read = partial(published.read, tensors["model"], target, **conversion.reading("the model"))
        whole = partial(
            _checkpoint, read, published.model, published.defaults, conversion, source, text_tokenizer
        )
        return target, None, whole

    sources = {"model": model, "vqgan": vqgan, "text_tokenizer": text_tokenizer}
    return _convert(begin, sources, config, out, options, tokenizers={"vqgan": published.read_tokenizer})


def add_drafter(
    checkpoint: str | Path,
    drafter: str | Path,
    config: str | Path | None = None,
    *,
    kind: str = "eagle",
    out: str | Path,
    **options: Any,
) -> Path:
    """Writes a checkpoint directory again with a drafter that replaces any other of its kind; returns its path.

    Args:
        checkpoint: the directory of the target.
        kind: a name in ``DRAFTERS``, of a kind that can be read.
        drafter, config, out, options: as for ``convert_llamagen``.

    Raises:
        LanternError: as ``convert_llamagen``, or the drafter was made for another target.
    """
    if kind not in DRAFTERS or not DRAFTERS[kind].has("read"):
        known = ", ".join(name for name, one in DRAFTERS.items() if one.has("read"))
        raise LanternError(f"no converter for a drafter of the kind {kind!r}: choose one of {known}")

    def begin(*_: Any) -> Begun:
        old = load_shapes(checkpoint)
        order = family_of(old.target_config).published_order(old.target_config, old.text_tokenizer)
        return old.target_config, order, partial(load, checkpoint, None)

    return _convert(begin, {"drafter" if kind == "eagle" else kind: drafter}, config, out, options, "drafter")


def add_text_encoder(
    checkpoint: str | Path,
    t5: str | Path,
    t5_tokenizer: str | Path,
    config: str | Path | None = None,
    *,
    out: str | Path,
    **options: Any,
) -> Path:
    """Writes the checkpoint directory of a caption-conditional target again with a T5 encoder; returns its path.

    Args:
        checkpoint: the directory of the target.
        t5, t5_tokenizer, config, out, options: as for ``convert_llamagen``.

    Raises:
        LanternError: as ``convert_llamagen``.
    """

    def begin(*_: Any) -> Begun:
        return load_shapes(checkpoint).target_config, None, partial(load, checkpoint, None)

    sources = {"t5": t5, "t5_tokenizer": t5_tokenizer}
    return _convert(begin, sources, config, out, options, "text_encoder")


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


def _check_prompts(target: TargetConfig, text_tokenizer: str | Path) -> None:
    """Raises LanternError for another model's text tokenizer, or a grid that prompts cannot name."""
    family_of(target).prompts(PromptParts(target, text_tokenizer=Path(text_tokenizer))).encode(["a"])


def _checkpoint(
    read: Callable[[], tuple[TargetConfig, PyTree]],
    model: str,
    usual: Mapping[str, float],
    conversion: Conversion,
    source: str,
    text_tokenizer: str | Path | None = None,
) -> Checkpoint:
    """Reads a target; returns its checkpoint, with its usual settings and a note on where its grid is from."""
    target, params = read()
    return Checkpoint(
        model, target, params, text_tokenizer=None if text_tokenizer is None else Path(text_tokenizer),
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
    tokenizers: Mapping[str, Callable[..., tuple[Any, Any]]] = _TOKENIZERS,
) -> Path:
    """Writes a checkpoint with every part for which files are given.

    Args:
        begin: (opened files, to which it may add; settings of the target; conversion) -> ``Begun``.
        sources: part -> its file. Parts are those of ``tokenizers``, "drafter" (EAGLE's) or another kind of
            drafter, "t5", "t5_tokenizer", and what ``begin`` reads.
        alone: the part to which a config file without parts applies.
        tokenizers: part -> its reader, for picture tokenizers.
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
        encoder = _text_config(paths, tensors["t5"], settings.get("text_encoder"))
    drafters, changes = {}, {}
    for part in tensors.keys() & {"drafter", *DRAFTERS}:
        kind = "eagle" if part == "drafter" else part
        read, chosen = DRAFTERS[kind], settings.get("drafter")
        if read.reads_config:
            chosen, _ = settings_for(read.config, paths[part], chosen)
        drafters[kind] = read.read(
            tensors[part], chosen, target=target, order=order, **conversion.reading("the drafter")
        )
    reading = conversion.stage("reading the tokenizer")
    pictures = [
        tokenizers[part](tensors[part], progress=reading) for part in tensors.keys() & tokenizers.keys()
    ]
    checkpoint = whole()
    if "t5" in paths:
        _, params = convert_t5(tensors["t5"], encoder, **conversion.reading("the text encoder"))
        changes |= {"text_encoder_config": encoder, "text_encoder_params": params}
        changes["text_tokenizer"] = paths["t5_tokenizer"]
    for made, params in pictures:
        check_codes(target, made)
        params = {"params": params}
        codebook = make_codebook(made, params, conversion.neighbours, conversion.neighbour_space)
        changes |= {"tokenizer_config": made, "tokenizer_params": params, "codebook": codebook}
    checkpoint = checkpoint.with_drafters(drafters)
    names = checkpoint.metadata.get("converted_from", {}) | {part: path.name for part, path in paths.items()}
    changes["metadata"] = checkpoint.metadata | {"converted_from": names}
    return _write(out, dataclasses.replace(checkpoint, **changes), conversion)


def _text_config(paths: Mapping[str, Path], tensors: Mapping[str, Any], settings: Settings) -> T5Config:
    config = t5_config_from_shapes(tensors, settings_for(T5Config, paths["t5"], settings)[0])
    check_tokenizer(load_tokenizer(paths["t5_tokenizer"]), config.vocab_size, paths["t5_tokenizer"])
    return config


def _write(out: str | Path, checkpoint: Checkpoint, conversion: Conversion) -> Path:
    drafters = [params for _, params in checkpoint.drafters.values()]
    params = (checkpoint.target_params, drafters, checkpoint.tokenizer_params, checkpoint.text_encoder_params)
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    done = 0

    def report(written: int) -> None:
        nonlocal done
        done = min(done + written, total)
        conversion.progress("writing and reading back", done, total)

    return save(out, checkpoint, overwrite=conversion.overwrite, report=report)
