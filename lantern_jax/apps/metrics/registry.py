"""All readers and scores by name, with the file that each needs; networks are imported when they are built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lantern_jax.apps.metrics.features import FeatureReader, Score
from lantern_jax.apps.metrics.protocols import ALL, CMMD, MANIFOLDS
from lantern_jax.io.errors import LanternError
from lantern_jax.io.plugins import Table, imported


@dataclass(frozen=True)
class ReaderKind:
    """A reader of pictures that users can choose.

    Example:
        >>> from lantern_jax.apps.metrics.registry import ReaderKind
        >>> ReaderKind("mean colours", lambda weights, preprocessing: None).distance
        'Fréchet distance'

    Attributes:
        help: one line.
        build: (file of weights or None, preprocessing) -> the reader.
        weights: the file it needs and where to get it; None if it needs none.
        preprocessings: the names there are, the default first; "" alone if there is only one.
        distance: what its Fréchet distance is called.
        measures: what is computed from its features unless a preset says otherwise.
    """

    help: str
    build: Callable[[Path | None, str], FeatureReader]
    weights: str | None = None
    preprocessings: tuple[str, ...] = ("",)
    distance: str = "Fréchet distance"
    measures: tuple[str, ...] = ALL


@dataclass(frozen=True)
class ScoreKind:
    """A score of pictures with prompts that users can choose.

    Example:
        >>> from lantern_jax.apps.metrics.registry import ScoreKind
        >>> ScoreKind("brightness", lambda weights: None).weights is None
        True

    Attributes:
        help: one line.
        build: file of weights or None -> the score.
        weights: the file it needs and where to get it; None if it needs none.
    """

    help: str
    build: Callable[[Path | None], Score]
    weights: str | None = None


def _later(place: str, count: int = 1) -> Callable[..., Any]:
    """Returns a function that imports the one at ``module:name``, and calls it with the first ``count`` arguments."""
    return lambda *given: imported(place)(*given[:count])


_CLIP_SCORE = (
    "model.safetensors with its tokenizer.json, from openai/clip-vit-base-patch32 on the Hugging Face hub"
)

READERS: Table[ReaderKind] = Table("features", {
    "demo": ReaderKind(
        "the demo's own classifier, for pictures of its prompts",
        _later("lantern_jax.apps.metrics.agreement:demo_features", 0),
    ),
    "inception": ReaderKind(
        "Inception v3 of 2015, the network of FID",
        _later("lantern_jax.apps.metrics.inception:inception_features", 2),
        "pt_inception-2015-12-05-6726825d.pth, from the release fid_weights of github.com/mseitzer/pytorch-fid",
        ("clean", "pytorch-fid", "tf"),
        "FID",
    ),
    "vgg": ReaderKind(
        "VGG16's second fully connected layer, for precision and recall; relu: after its ReLU",
        _later("lantern_jax.apps.metrics.vgg:vgg_features", 2),
        "vgg16-397923af.pth, from download.pytorch.org/models",
        ("linear", "relu"),
        measures=(MANIFOLDS,),
    ),
    "clip": ReaderKind(
        "CLIP's picture embedding, for CMMD",
        _later("lantern_jax.apps.metrics.clip_scores:cmmd_features"),
        "model.safetensors, from openai/clip-vit-large-patch14-336 on the Hugging Face hub",
        measures=(CMMD,),
    ),
}, "readers")  # fmt: skip

SCORES: Table[ScoreKind] = Table("score", {
    "agreement": ScoreKind(
        "how far the demo's classifier sees what the prompt asks for",
        _later("lantern_jax.apps.metrics.agreement:agreement_scores", 0),
    ),
    "clip": ScoreKind(
        "cosine of CLIP's embeddings of picture and prompt",
        _later("lantern_jax.apps.metrics.clip_scores:clip_scores"),
        _CLIP_SCORE,
    ),
    "clip-lantern": ScoreKind(
        "the same, prompts after 'A photo depicts'",
        _later("lantern_jax.apps.metrics.clip_scores:lantern_clip_scores"),
        _CLIP_SCORE,
    ),
    "hpsv2": ScoreKind(
        "human preference score v2, raw",
        _later("lantern_jax.apps.metrics.clip_scores:hps_scores"),
        "HPS_v2.1_compressed.pt, from xswu/HPSv2 on the Hugging Face hub, with a CLIP's tokenizer.json beside it",
    ),
}, "scores")  # fmt: skip


def check_names(given: str, kinds: Table) -> list[str]:
    """Splits a comma-separated list of names; raises LanternError for an unknown or missing name."""
    names = dict.fromkeys(name.strip() for name in given.split(","))
    for name in names:
        kinds.find(name)
    return list(names)


def weight_files(given: list[str], kinds: Mapping[str, ReaderKind | ScoreKind]) -> dict[str, Path | None]:
    """Returns the file of every kind asked for, from ``FILE`` or ``NAME=FILE``; None for one that needs none.

    Raises:
        LanternError: a kind lacks its file, or it is not clear which kind a file is for.
    """
    needing = [name for name, kind in kinds.items() if kind.weights is not None]
    files: dict[str, Path] = {}
    for text in given:
        name, _, file = text.partition("=")
        if name not in kinds and len(needing) == 1:
            name, file = needing[0], text
        if name not in needing:
            wanted = " and ".join(f"{name}=FILE" for name in needing)
            way = f"give {wanted}" if wanted else "leave it out"
            raise LanternError(f"--weights {text} is for nothing that is measured: {way}")
        files[name] = Path(file)
    for name in needing:
        if name not in files:
            raise LanternError(
                f"{name} needs weights: fetch {kinds[name].weights}, and give --weights {name}=FILE"
            )
        if not files[name].exists():
            raise LanternError(f"{files[name]} is not there: fetch {kinds[name].weights}")
    return {name: files.get(name) for name in kinds}
