"""All readers and scores by name, with the file that each needs; networks are imported when they are built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.plugins import Table
from lantern_jax.metrics.features import FeatureReader
from lantern_jax.metrics.protocols import ALL, CMMD, MANIFOLDS
from lantern_jax.metrics.scores import Score


@dataclass(frozen=True)
class ReaderKind:
    """A reader of pictures that can be asked for.

    Example:
        >>> lantern_jax.ReaderKind("mean colours", lambda weights, preprocessing: None).distance
        'Fréchet distance'

    Attributes:
        help: one line.
        build: (file of weights or None, preprocessing) -> the reader.
        weights: the file it needs and where it is from; None where it needs none.
        preprocessings: the names there are, the usual first; "" alone where there is one only.
        distance: what its Fréchet distance is called.
        measures: what is computed of its features unless a preset says so.
    """

    help: str
    build: Callable[[Path | None, str], FeatureReader]
    weights: str | None = None
    preprocessings: tuple[str, ...] = ("",)
    distance: str = "Fréchet distance"
    measures: tuple[str, ...] = ALL


@dataclass(frozen=True)
class ScoreKind:
    """A score of pictures with prompts that can be asked for.

    Example:
        >>> lantern_jax.ScoreKind("brightness", lambda weights: None).weights is None
        True

    Attributes:
        help: one line.
        build: file of weights or None -> the score.
        weights: the file it needs and where it is from; None where it needs none.
    """

    help: str
    build: Callable[[Path | None], Score]
    weights: str | None = None


def _demo(weights: Path | None, preprocessing: str) -> FeatureReader:
    from lantern_jax.metrics.agreement import demo_features

    return demo_features()


def _inception(weights: Path | None, preprocessing: str) -> FeatureReader:
    from lantern_jax.metrics.inception import inception_features

    return inception_features(weights, preprocessing)


def _vgg(weights: Path | None, preprocessing: str) -> FeatureReader:
    from lantern_jax.metrics.vgg import vgg_features

    return vgg_features(weights, rectified=preprocessing == "relu")


def _clip_features(weights: Path | None, preprocessing: str) -> FeatureReader:
    from lantern_jax.metrics.cmmd import cmmd_features

    return cmmd_features(weights)


def _agreement(weights: Path | None) -> Score:
    from lantern_jax.metrics.agreement import agreement_scores

    return agreement_scores()


def _clip(weights: Path | None) -> Score:
    from lantern_jax.metrics.clip_scores import clip_scores

    return clip_scores(weights)


def _clip_lantern(weights: Path | None) -> Score:
    from lantern_jax.metrics.clip_scores import LANTERN_PREFIX, clip_scores

    return clip_scores(weights, prefix=LANTERN_PREFIX)


def _hps(weights: Path | None) -> Score:
    from lantern_jax.metrics.clip_scores import hps_scores

    return hps_scores(weights)


def _image_reward(weights: Path | None) -> Score:
    from lantern_jax.metrics.image_reward import image_reward_scores

    return image_reward_scores(weights)


_CLIP_SCORE = (
    "model.safetensors with its tokenizer.json, from openai/clip-vit-base-patch32 on the Hugging Face hub"
)

READERS: Table[ReaderKind] = Table("features", {
    "demo": ReaderKind("the demo's own classifier, for pictures of its prompts", _demo),
    "inception": ReaderKind(
        "Inception v3 of 2015, the network of FID",
        _inception,
        "pt_inception-2015-12-05-6726825d.pth, from the release fid_weights of github.com/mseitzer/pytorch-fid",
        ("clean", "pytorch-fid", "tf"),
        "FID",
    ),
    "vgg": ReaderKind(
        "VGG16's second fully connected layer, for precision and recall; relu: after its ReLU",
        _vgg,
        "vgg16-397923af.pth, from download.pytorch.org/models",
        ("linear", "relu"),
        measures=(MANIFOLDS,),
    ),
    "clip": ReaderKind(
        "CLIP's picture embedding, for CMMD",
        _clip_features,
        "model.safetensors, from openai/clip-vit-large-patch14-336 on the Hugging Face hub",
        measures=(CMMD,),
    ),
})  # fmt: skip

SCORES: Table[ScoreKind] = Table("score", {
    "agreement": ScoreKind("how far the demo's classifier sees what the prompt asks for", _agreement),
    "clip": ScoreKind("cosine of CLIP's embeddings of picture and prompt", _clip, _CLIP_SCORE),
    "clip-lantern": ScoreKind("the same, prompts after 'A photo depicts'", _clip_lantern, _CLIP_SCORE),
    "hpsv2": ScoreKind(
        "human preference score v2, raw",
        _hps,
        "HPS_v2.1_compressed.pt, from xswu/HPSv2 on the Hugging Face hub, with a CLIP's tokenizer.json beside it",
    ),
    "image-reward": ScoreKind(
        "ImageReward, about normally distributed on its authors' pictures",
        _image_reward,
        "ImageReward.pt, from THUDM/ImageReward on the Hugging Face hub, with BERT's tokenizer.json beside it",
    ),
})  # fmt: skip


def register_metric(name: str, kind: ReaderKind | ScoreKind) -> None:
    """Makes a metric of another package known by name: a reader of pictures, or a score of pictures with prompts.

    Raises:
        LanternError: a name that is taken or not valid.

    Example:
        >>> lantern_jax.register_metric("clip", lantern_jax.ScoreKind("mine", lambda weights: None))
        Traceback (most recent call last):
        lantern_jax.io.errors.LanternError: there is a score clip already: give yours another name
    """
    if isinstance(kind, ReaderKind):
        READERS.add(name, kind)
    else:
        SCORES.add(name, kind)


def check_names(given: str, kinds: Mapping[str, object], what: str) -> list[str]:
    """Splits a list with commas; raises LanternError for an unknown name or none."""
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if name not in kinds:
            raise errors.unknown(what, name, kinds)
    return list(dict.fromkeys(names))


def weight_files(given: list[str], kinds: Mapping[str, ReaderKind | ScoreKind]) -> dict[str, Path | None]:
    """Returns the file of every kind asked for, from ``FILE`` or ``NAME=FILE``; None for one that needs none.

    Raises:
        LanternError: a kind lacks its file, or it is not clear which kind a file is for.
    """
    needing = [name for name, kind in kinds.items() if kind.weights is not None]
    files: dict[str, Path] = {}
    for text in given:
        name, separator, file = text.partition("=")
        if not separator or name not in kinds:
            if not needing:
                raise LanternError(f"--weights {text}: {', '.join(kinds)} needs no weights: leave it out")
            if len(needing) > 1:
                wanted = " and ".join(f"{name}=FILE" for name in needing)
                raise LanternError(f"--weights {text} does not say what it is for: give {wanted}")
            name, file = needing[0], text
        if name not in needing:
            raise LanternError(f"--weights {text}: {name} needs no weights: leave it out")
        files[name] = Path(file)
    for name in needing:
        if name not in files:
            raise LanternError(
                f"{name} needs weights: fetch {kinds[name].weights}, and give --weights {name}=FILE"
            )
        if not files[name].exists():
            raise LanternError(f"{files[name]} is not there: fetch {kinds[name].weights}")
    return {name: files.get(name) for name in kinds}
