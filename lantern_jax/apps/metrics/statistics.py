"""Statistics of a set of pictures, to measure others against: computed once, saved, read again.

The file is an .npz archive: "readers" names the readers of the pictures, and "0/features" and "0/size" belong to the
first, and so on. Files of ADM and pytorch-fid ("mu" and "sigma") are read too.

Axes: n pictures, F features, H W height and width.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from lantern_jax.apps.foreign.archives import open_archive
from lantern_jax.apps.metrics.features import FeatureReader
from lantern_jax.apps.metrics.frechet import Normal
from lantern_jax.apps.metrics.picture_sources import ARRAY, read_pictures
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import Contents, read_arrays

_READERS, _FOREIGN = "readers", {"mu", "sigma"}


@dataclass(frozen=True)
class Statistics:
    """The statistics of a set as one reader sees it.

    Attributes:
        reader: the reader's name.
        features: float32 [n, F]; None if a file of another program does not hold them.
        size: (H, W) of all pictures; None where they differ or it is unknown.
        given: the distribution in a file of another program, which may be of more pictures than ``features``.
    """

    reader: str
    features: Float[np.ndarray, "n F"] | None = None
    size: tuple[int, int] | None = None
    given: Normal | None = None

    @property
    def count(self) -> int | None:
        """The number of pictures; None if a file does not say."""
        return len(self.features) if self.given is None else None

    @cached_property
    def normal(self) -> Normal:
        """The distribution of the features."""
        return Normal.of_features(self.features) if self.given is None else self.given


def statistics_of(path: str | Path, reader: FeatureReader) -> Statistics:
    """Returns a reader's statistics of a folder, a picture set, or a file of pictures or statistics.

    A file with "mu" and "sigma" does not name its reader: it is taken to be this one.

    Raises:
        LanternError: pictures that cannot be read, fewer than two, or a file of other readers.
    """
    path, names, given = Path(path), _names(path), None
    if _READERS in names:
        return _stored(path, reader)
    if names >= _FOREIGN:
        given = _foreign(path, reader)
        if ARRAY not in names:
            return Statistics(reader.name, given=given)
    sizes = set()

    def watched() -> Iterator[UInt8[np.ndarray, "H W 3"]]:
        for one in read_pictures(path):
            sizes.add(one.picture.shape[:2])
            yield one.picture

    features = reader.features(watched()).astype(np.float32)
    Normal.of_features(features[:2])  # Fewer than two have none.
    return Statistics(reader.name, features, sizes.pop() if len(sizes) == 1 else None, given)


def is_statistics(path: str | Path) -> bool:
    """Tells whether this is a file of statistics, not pictures; raises LanternError for a damaged archive."""
    names = _names(path)
    return _READERS in names or names >= _FOREIGN


def check_counted(path: str | Path) -> None:
    """Raises LanternError for a file whose statistics ``statistics_file`` does not take."""
    if is_statistics(path) and _READERS not in _names(path):
        raise LanternError(f"{path} holds statistics already: use it as it is, without --save-reference")


def statistics_file(statistics: Sequence[Statistics]) -> Contents:
    """Returns the contents of a file with a set's statistics by one or several readers."""
    arrays = {_READERS: np.array([one.reader for one in statistics])}
    for number, one in enumerate(statistics):
        arrays |= {f"{number}/features": one.features}
        arrays |= {} if one.size is None else {f"{number}/size": np.array(one.size)}
    return lambda file: np.savez(file, **arrays)


def _stored(path: Path, reader: FeatureReader) -> Statistics:
    names = [str(name) for name in np.atleast_1d(_arrays(path, {_READERS})[_READERS])]
    if reader.name not in names:
        raise LanternError(
            f"{path} was read by {errors.listed(map(repr, names))}, not by {reader.name!r}: "
            "give statistics or pictures read alike"
        )
    start = f"{names.index(reader.name)}/"
    arrays = _arrays(path, {f"{start}features", f"{start}size"})
    features, size = arrays.get(f"{start}features"), arrays.get(f"{start}size")
    if features is None or features.shape[1:] != (reader.width,):
        raise _damaged(path, "it lacks features of this reader")
    return Statistics(reader.name, features, None if size is None else tuple(map(int, size)))


def _foreign(path: Path, reader: FeatureReader) -> Normal:
    """Returns another program's mean and covariance."""
    found = _arrays(path, _FOREIGN)
    mean, covariance = (np.asarray(found[name], np.float64) for name in ("mu", "sigma"))
    if (mean.shape, covariance.shape) != ((reader.width,), (reader.width, reader.width)):
        raise LanternError(
            f"{path}: mu and sigma are {list(mean.shape)} and {list(covariance.shape)}, but {reader.name} gives "
            f"{reader.width} numbers: give statistics of this reader"
        )
    return Normal.of_covariance(mean, covariance)


def _names(path: str | Path) -> set[str]:
    """Returns the names of an archive's arrays; none for what is no .npz file."""
    if Path(path).suffix != ".npz" or not Path(path).is_file():
        return set()
    with open_archive(path) as archive:
        return {name.removesuffix(".npy") for name in archive.namelist()}


def _arrays(path: Path, names: set[str]) -> Mapping[str, np.ndarray]:
    """Reads arrays; raises LanternError for damaged ones, and numbers that are not finite."""
    try:
        arrays = read_arrays(path, names)
    except LanternError as error:
        raise _damaged(path, errors.short(error)) from error
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise _damaged(path, f"{name} not finite")
    return arrays


def _damaged(path: Path, why: str) -> LanternError:
    return LanternError(f"{path} is not a complete file of statistics ({why}): make or fetch it again")
