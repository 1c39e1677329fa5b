"""Converts published files to a checkpoint directory.

Every part is read tensor by tensor into the dtype it is stored in; the directory appears when all of it is written
and read back.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lantern_jax.checkpoints.store import Checkpoint, check_new, load, save
from lantern_jax.decoding.acceptance import Codebook
from lantern_jax.decoding.neighbours import nearest_codes
from lantern_jax.families.chameleon_vq_weights import convert_vqgan
from lantern_jax.families.chameleon_weights import convert_chameleon
from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.families.llamagen_vq_weights import convert_vq
from lantern_jax.families.llamagen_weights import convert_gpt
from lantern_jax.families.registry import TargetConfig, family_of
from lantern_jax.families.t5_weights import convert_t5, t5_config_from_shapes
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json
from lantern_jax.models.chameleon import ChameleonConfig
from lantern_jax.models.llamagen import LlamaGenConfig
from lantern_jax.models.vq import VQModel
from lantern_jax.tensors.layer_names import normalize_settings
from lantern_jax.tensors.tensor_files import StoredTensor, open_tensors
from lantern_jax.text.chameleon import ChameleonVocabulary
from lantern_jax.text.t5 import check_tokenizer
from lantern_jax.text.tokenizers import load_tokenizer

# Enough for the k of the papers (LANTERN up to 1000 at vocabulary 16384).
NEIGHBOURS = 1000
NEIGHBOUR_SPACES = ("decoder", "raw")
# The settings the models are usually sampled with, by what they are conditioned on or their layout.
_DEFAULTS = {
    "class": {"guidance": 4.0, "top_k": 2000, "temperature": 1.0},
    "caption": {"guidance": 7.5, "top_k": 1000, "temperature": 1.0},
    "anole": {"guidance": 3.0, "top_k": 2000, "temperature": 1.0},
    "lumina": {"guidance": 4.0, "top_k": 2000, "temperature": 1.0},
}
_MODELS = {"anole": "Anole", "lumina": "Lumina-mGPT"}
_CONFIG_PARTS = ("target", "drafter", "text_encoder")


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Options of a conversion, the same for every model.

    Attributes:
        dtype: float16, bfloat16 or float32, of the stored target, drafter and text encoder.
        neighbours: columns of the neighbour table, at most the number of codes less one.
        neighbour_space: "decoder", codes as the decoder sees them (l2-normalized for LlamaGen), or "raw", the
            stored weights (the published table).
        overwrite: replace a checkpoint that exists.
        progress: called with what is going on, bytes done and bytes in all.
    """

    dtype: Any = "bfloat16"
    neighbours: int = NEIGHBOURS
    neighbour_space: str = "decoder"
    overwrite: bool = False
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None

    def __post_init__(self):
        if self.neighbour_space not in NEIGHBOUR_SPACES:
            raise LanternError(
                f"unknown neighbour space {self.neighbour_space!r}: choose {' or '.join(NEIGHBOUR_SPACES)}"
            )
        if self.neighbours < 0:
            raise LanternError(f"{self.neighbours} neighbours are not valid: give a number >= 0")

    def stage(self, name: str) -> Callable[[int, int], None]:
        """Returns what one reader calls with bytes done and bytes in all."""
        return lambda done, total: self.progress(name, done, total)


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
        gpt, vq, drafter, t5: tensor files, or what else ``open_tensors`` takes. With ``vq`` the checkpoint can
            draw, and has a neighbour table for relaxed rules; with ``t5`` (Flan-T5-XL) it takes captions. The
            ``config.json`` in the GPT's folder, and those beside the drafter and the text encoder, are read.
        config: a JSON file with what shapes do not tell: settings of the GPT (``{"num_heads": 20, "grid": 32}``),
            or ``{"target": {...}, "drafter": {...}, "text_encoder": {...}}``.
        t5_tokenizer: T5's ``spiece.model`` or ``tokenizer.json``.
        out: the new directory.
        options: fields of ``Conversion``.

    Raises:
        LanternError: anything wrong with the files or settings, before anything is written.
    """
    conversion = Conversion(**options)
    check_new(out, conversion.overwrite)
    settings = _read_settings(config)
    files = _opened({"the GPT": gpt, "the tokenizer": vq, "the drafter": drafter, "the text encoder": t5})
    target_settings = settings.get("target")
    if Path(gpt).is_dir():
        target_settings = _beside(gpt, target_settings, LlamaGenConfig)
    target, params = convert_gpt(
        files["the GPT"], target_settings, jnp.dtype(conversion.dtype),
        progress=conversion.stage("reading the GPT"),
    )  # fmt: skip
    conditioning = "class" if target.num_labels else "caption"
    if t5 is not None and not target.caption_dim:
        raise LanternError(f"{gpt} is class-conditional: it takes no text encoder; leave --t5 out")
    parts = {
        **_drafter_parts(drafter, files["the drafter"], settings.get("drafter"), target, None, conversion),
        **_text_parts(t5, files["the text encoder"], t5_tokenizer, settings.get("text_encoder"), conversion),
        **_tokenizer_parts(files["the tokenizer"], convert_vq, conversion),
    }
    checkpoint = Checkpoint(
        model=f"LlamaGen, {conditioning}-conditional",
        target_config=target,
        target_params=params,
        defaults=_defaults(conditioning, target),
        metadata=_metadata(conversion, gpt=gpt, vq=vq, drafter=drafter, t5=t5, t5_tokenizer=t5_tokenizer),
        **parts,
    )
    return _write(out, checkpoint, conversion)


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
        model: the folder with the Hugging Face shards, or its index. Its ``config.json`` is read.
        vqgan: Chameleon's ``vqgan.ckpt``. With it the checkpoint can draw, and has a neighbour table.
        drafter: a tensor file or its folder; a ``config.json`` beside it is read.
        config: as for ``convert_llamagen``.
        text_tokenizer: Chameleon's ``text_tokenizer.json``, which also tells the codebook's token ids.
        layout: "anole" or "lumina".
        out: the new directory.
        options: fields of ``Conversion``.

    Raises:
        LanternError: anything wrong with the files or settings, before anything is written.
    """
    conversion = Conversion(**options)
    check_new(out, conversion.overwrite)
    settings = _read_settings(config)
    files = _opened({"the model": model, "the tokenizer": vqgan, "the drafter": drafter})
    embedding = files["the model"].get("model.embed_tokens.weight")
    load_tokenizer(text_tokenizer)
    vocabulary = ChameleonVocabulary.from_file(
        text_tokenizer, *(() if embedding is None else embedding.shape[:1])
    )
    target, params = convert_chameleon(
        files["the model"], _beside(model, settings.get("target"), ChameleonConfig), order=vocabulary.order,
        num_codes=vocabulary.num_codes, layout=layout, dtype=jnp.dtype(conversion.dtype),
        progress=conversion.stage("reading the model"),
    )  # fmt: skip
    parts = {
        **_drafter_parts(
            drafter, files["the drafter"], settings.get("drafter"), target, vocabulary.order, conversion
        ),
        **_tokenizer_parts(files["the tokenizer"], convert_vqgan, conversion),
    }
    checkpoint = Checkpoint(
        model=_MODELS[layout],
        target_config=target,
        target_params=params,
        text_tokenizer=Path(text_tokenizer),
        defaults=_defaults(layout, target),
        metadata=_metadata(
            conversion, model=model, vqgan=vqgan, drafter=drafter, text_tokenizer=text_tokenizer
        ),
        **parts,
    )
    return _write(out, checkpoint, conversion)


def add_drafter(
    checkpoint: str | Path,
    drafter: str | Path,
    config: str | Path | None = None,
    *,
    kind: str = "eagle",
    out: str | Path,
    **options: Any,
) -> Path:
    """Writes a checkpoint directory again with a drafter, in place of any other of its kind; returns its path.

    Args:
        checkpoint: the directory of the target.
        kind: a name in ``DRAFTERS`` of a kind that is read.
        drafter, config, out, options: as for ``convert_llamagen``.

    Raises:
        LanternError: as ``convert_llamagen``; the drafter was made for another target.
    """
    conversion = Conversion(**options)
    check_new(out, conversion.overwrite)
    if kind not in DRAFTERS or not DRAFTERS[kind].has("read"):
        known = ", ".join(name for name, one in DRAFTERS.items() if one.has("read"))
        raise LanternError(f"no converter for a drafter of the kind {kind!r}: choose one of {known}")
    files = _opened({"the drafter": drafter})
    old = load(checkpoint, None)
    order = family_of(old.target_config).published_order(old.target_config, old.text_tokenizer)
    settings = _read_settings(config, "drafter").get("drafter")
    parts = _drafter_parts(
        drafter, files["the drafter"], settings, old.target_config, order, conversion, kind
    )
    parts = {"drafters": {**old.drafters, **parts["drafters"]}}
    source = {"drafter" if kind == "eagle" else kind: drafter}
    return _write(out, _changed(old, parts, **source), conversion)


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
    conversion = Conversion(**options)
    check_new(out, conversion.overwrite)
    files = _opened({"the text encoder": t5})
    old = load(checkpoint, None)
    if not family_of(old.target_config).text_width(old.target_config):
        raise LanternError(f"{checkpoint} is not caption-conditional: it takes no text encoder")
    settings = _read_settings(config, "text_encoder").get("text_encoder")
    parts = _text_parts(t5, files["the text encoder"], t5_tokenizer, settings, conversion)
    return _write(out, _changed(old, parts, t5=t5, t5_tokenizer=t5_tokenizer), conversion)


def make_codebook(config, params, neighbours: int = NEIGHBOURS, neighbour_space: str = "decoder") -> Codebook:
    """Makes the neighbour table and the codes, as the decoder sees them, of a VQ tokenizer.

    Args:
        config, params: a ``VQConfig`` and ``VQModel`` parameters.
        neighbours: columns of the table, cut to the number of codes less one.
        neighbour_space: "decoder" or "raw"; distances are the decoder's in either.
    """
    codes = jnp.asarray(VQModel(config).apply(params, method="code_vectors"), jnp.float32)
    space = codes if neighbour_space == "decoder" else jnp.asarray(params["params"]["codebook"], jnp.float32)
    table = nearest_codes(space, min(neighbours, config.codebook_size - 1))
    return Codebook(neighbours=np.asarray(table), codes=np.asarray(codes))


def _opened(files: Mapping[str, str | Path | None]) -> dict[str, dict[str, StoredTensor] | None]:
    """Opens all files before the first tensor is read, so that a wrong name is an error immediately."""
    return {part: None if path is None else open_tensors(path) for part, path in files.items()}


def _tokenizer_parts(tensors, convert, conversion: Conversion) -> dict[str, Any]:
    if tensors is None:
        return {}
    config, params = convert(tensors, progress=conversion.stage("reading the tokenizer"))
    params = {"params": params}
    codebook = make_codebook(config, params, conversion.neighbours, conversion.neighbour_space)
    return {"tokenizer_config": config, "tokenizer_params": params, "codebook": codebook}


def _drafter_parts(
    path, tensors, settings, target: TargetConfig, order, conversion: Conversion, kind: str = "eagle"
) -> dict[str, Any]:
    if tensors is None:
        return {}
    read = DRAFTERS[kind]
    if read.reads_config:
        settings = _beside(path, settings, read.config)
    config, params = read.read(
        tensors,
        settings,
        target=target,
        order=order,
        dtype=jnp.dtype(conversion.dtype),
        progress=conversion.stage("reading the drafter"),
    )
    return {"drafters": {kind: (config, params)}}


def _text_parts(path, tensors, tokenizer, settings, conversion: Conversion) -> dict[str, Any]:
    if (tensors is None) != (tokenizer is None):
        raise LanternError("a text encoder and its tokenizer go together: give both --t5 and --t5-tokenizer")
    if tensors is None:
        return {}
    names = load_tokenizer(tokenizer)
    settings = _beside(path, settings)
    check_tokenizer(names, t5_config_from_shapes(tensors, settings).vocab_size, Path(tokenizer))
    config, params = convert_t5(
        tensors, settings, jnp.dtype(conversion.dtype), progress=conversion.stage("reading the text encoder"),
    )  # fmt: skip
    return {
        "text_encoder_config": config, "text_encoder_params": params, "text_tokenizer": Path(tokenizer),
    }  # fmt: skip


def _defaults(kind: str, target: TargetConfig) -> dict[str, Any]:
    return _DEFAULTS[kind] | {"top_k": min(_DEFAULTS[kind]["top_k"], target.num_codes)}


def _metadata(conversion: Conversion, **sources: str | Path | None) -> dict[str, Any]:
    return {
        "converted_from": {part: Path(file).name for part, file in sources.items() if file is not None},
        "neighbour_space": conversion.neighbour_space,
    }


def _changed(checkpoint: Checkpoint, parts: Mapping[str, Any], **sources: str | Path) -> Checkpoint:
    files = checkpoint.metadata.get("converted_from", {}) | {
        part: Path(file).name for part, file in sources.items()
    }
    metadata = checkpoint.metadata | {"converted_from": files}
    return dataclasses.replace(checkpoint, metadata=metadata, **parts)


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


def _beside(path: str | Path, settings: Mapping[str, Any] | None, kind: type | None = None) -> dict[str, Any]:
    """Adds to settings what the ``config.json`` in the folder, or beside the file, of tensors says.

    Args:
        kind: the config class whose fields are wanted of that file; None for all its entries.
    """
    path = Path(path)
    beside = path / "config.json" if path.is_dir() else path.with_name("config.json")
    found = _read_json(beside) if beside.is_file() else {}
    return (normalize_settings(found, kind) if kind and found else found) | dict(settings or {})


def _read_settings(config: str | Path | None, alone: str = "target") -> dict[str, Mapping[str, Any]]:
    """Reads {part: settings} from a config file, which may hold the settings of one part alone."""
    if config is None:
        return {}
    settings = _read_json(Path(config))
    if not set(settings) & set(_CONFIG_PARTS):
        return {alone: settings}
    unknown = sorted(set(settings) - set(_CONFIG_PARTS))
    if unknown:
        raise LanternError(
            f"{config} holds unknown parts {', '.join(unknown)}: give {' and '.join(_CONFIG_PARTS)}"
        )
    return settings


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise LanternError(f"{path} is not a file: give a JSON file")
    content = read_json(path, 10**6)
    if not isinstance(content, dict):
        raise LanternError(f'{path} holds no JSON object: give one, such as {{"num_heads": 20}}')
    return content
