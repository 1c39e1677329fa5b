"""Statistics of a set of pictures, to measure others against: computed once, saved, read again.

The file is an .npz archive: "readers" names the readers of the pictures, and "0/count", "0/total", "0/outer",
"0/features" and "0/size" belong to the first, and so on. Files of ADM and pytorch-fid ("mu" and "sigma") are read too.

Axes: n pictures, F features, H W height and width.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from lantern_jax.apps.metrics.features import FeatureReader
from lantern_jax.apps.metrics.moments import Moments, Normal
from lantern_jax.apps.metrics.picture_sources import ARRAY, read_pictures
from lantern_jax.io import errors
from lantern_jax.io.archives import open_archive, read_arrays
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import Contents

_READERS = "readers"
_FIELDS = ("count", "total", "outer", "features", "size")


@dataclass(frozen=True)
class Statistics:
    """The statistics of a set as one reader sees it.

    Attributes:
        reader: the reader's name.
        normal: sums, or mean and covariance if a file holds no more.
        features: float32 [n, F], for distances that need every picture; None if a file does not hold them.
        size: (H, W) of all pictures; None where they differ or it is unknown.
    """

    reader: str
    normal: Moments | Normal
    features: Float[np.ndarray, "n F"] | None = None
    size: tuple[int, int] | None = None

    @property
    def count(self) -> int | None:
        """n; None if a file does not say."""
        return self.normal.count if isinstance(self.normal, Moments) else None


def read_statistics(reader: FeatureReader, pictures: Iterable[UInt8[np.ndarray, "H W 3"]]) -> Statistics:
    """Reads the statistics of at least two pictures; raises LanternError for fewer."""
    sizes = set()

    def watched() -> Iterator[UInt8[np.ndarray, "H W 3"]]:
        for picture in pictures:
            sizes.add(picture.shape[:2])
            yield picture

    features = reader.features(watched())
    if len(features) < 2:
        raise LanternError(f"{len(features)} picture(s) have no covariance: give at least 2")
    size = sizes.pop() if len(sizes) == 1 else None
    return Statistics(reader.name, Moments.of(features), features.astype(np.float32), size)


def statistics_of(path: str | Path, reader: FeatureReader) -> Statistics:
    """Returns a reader's statistics of a folder, a picture set, or a file of pictures or statistics.

    A file with "mu" and "sigma" does not name its reader: it is taken to be this one.

    Raises:
        LanternError: pictures that cannot be read, too few of them, or a file of other readers.
    """
    path = Path(path)
    if is_statistics(path):
        names = _names(path)
        return _stored(path, reader) if _READERS in names else _foreign(path, reader, names)
    return read_statistics(reader, (one.picture for one in read_pictures(path)))


def is_statistics(path: str | Path) -> bool:
    """Tells whether this is a file of statistics, not pictures; raises LanternError for a damaged archive."""
    path = Path(path)
    if path.suffix != ".npz" or not path.is_file():
        return False
    names = _names(path)
    return _READERS in names or {"mu", "sigma"} <= names


def check_counted(path: str | Path) -> None:
    """Raises LanternError for a file whose statistics ``statistics_file`` does not take."""
    if is_statistics(path) and _READERS not in _names(Path(path)):
        raise LanternError(f"{path} holds statistics already: use it as it is, without --save-reference")


def statistics_file(statistics: Sequence[Statistics]) -> Contents:
    """Returns the contents of a file with a set's statistics by one or several readers.

    Raises:
        LanternError: statistics that hold only mean and covariance, which are in a file already.
    """
    arrays = {_READERS: np.array([one.reader for one in statistics])}
    for number, one in enumerate(statistics):
        if not isinstance(one.normal, Moments):
            raise LanternError(f"{one.reader}: mean and covariance alone are in a file already: use that one")
        others = {f"{number}/features": one.features, f"{number}/size": one.size}
        arrays |= one.normal.to_arrays(f"{number}/")
        arrays |= {name: np.asarray(value) for name, value in others.items() if value is not None}
    return lambda file: np.savez(file, **arrays)


def _stored(path: Path, reader: FeatureReader) -> Statistics:
    names = [str(name) for name in np.atleast_1d(_arrays(path, {_READERS})[_READERS])]
    if reader.name not in names:
        raise LanternError(
            f"{path} was read by {errors.listed(map(repr, names))}, not by {reader.name!r}: "
            "give statistics or pictures read alike"
        )
    start = f"{names.index(reader.name)}/"
    arrays = _arrays(path, {f"{start}{field}" for field in _FIELDS})
    features, size = (arrays.get(f"{start}{field}") for field in ("features", "size"))
    try:
        moments = Moments.from_arrays(arrays, start)
    except (ValueError, KeyError) as error:
        raise _damaged(path, errors.short(error)) from error
    counted = features is None or features.shape == (moments.count, reader.width)
    sized = size is None or (size.shape == (2,) and size.dtype.kind == "i")
    if moments.total.shape != (reader.width,) or not (counted and sized):
        raise _damaged(path, "its arrays do not fit together")
    _check_finite(path, arrays)
    size = None if size is None else tuple(map(int, size))
    return Statistics(reader.name, moments, features, size)


def _foreign(path: Path, reader: FeatureReader, names: set[str]) -> Statistics:
    """Returns another program's mean and covariance, with features of the pictures in the same file, if any."""
    found = _arrays(path, {"mu", "sigma"})
    _check_finite(path, found)
    arrays = {name: np.asarray(found[name], np.float64) for name in ("mu", "sigma")}
    shapes = [list(array.shape) for array in arrays.values()]
    if shapes != [[reader.width], [reader.width, reader.width]]:
        raise LanternError(
            f"{path}: mu and sigma are {shapes[0]} and {shapes[1]}, but {reader.name} gives {reader.width} numbers: "
            "give statistics of this reader"
        )
    normal = Normal.of_covariance(arrays["mu"], arrays["sigma"])
    if ARRAY not in names:
        return Statistics(reader.name, normal)
    pictures = (one.picture for one in read_pictures(path))
    return replace(read_statistics(reader, pictures), normal=normal)


def _names(path: Path) -> set[str]:
    with open_archive(path) as archive:
        return {name.removesuffix(".npy") for name in archive.namelist()}


def _arrays(path: Path, names: set[str]) -> dict[str, np.ndarray]:
    try:
        return read_arrays(path, names)
    except ValueError as error:
        raise _damaged(path, errors.short(error)) from error


def _check_finite(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    wrong = [
        name for name, array in arrays.items() if array.dtype.kind == "U" or not np.isfinite(array).all()
    ]
    if wrong:
        raise _damaged(path, f"{', '.join(wrong)} not finite")


def _damaged(path: Path, why: str) -> LanternError:
    return LanternError(f"{path} is not a complete file of statistics ({why}): make or fetch it again")
