"""Files of tuned settings: what they hold, where they lie, and which of them a call may use.

A file is for one checkpoint, device, batch, dtype, guidance and sampling distribution. A call with any other of these
does not use it; nor does one that says itself how it wants to be decoded.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.decoding.methods import AUTO, TREES_METHOD, Method
from lantern_jax.devices.platform import device_name
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json
from lantern_jax.settings.auto import Expected
from lantern_jax.settings.settings import NUMBERS, PARTS, SAMPLING, Settings
from lantern_jax.tensors.checksums import checkpoint_digest

FORMAT, VERSION = "lantern_jax tuned settings", 3
OFF = "off"
# How the names of files in a checkpoint's folder begin, and the most bytes of one.
_PREFIX, _LARGEST = "tuned-", 10**6


@dataclass(frozen=True)
class Key:
    """What a file is for.

    Attributes:
        model: the checkpoint's name, for people.
        checkpoint: digest of the checkpoint's config, which lists names, sizes and checksums of all its files; and the
            size of the pictures if one was asked for.
        device: kind and number of devices, and over how many a model is split; for a CPU also its cores.
        batch: pictures decoded together.
        dtype: dtype of parameters and products.
        guidance, temperature, top_k, top_p, min_p: the call's.
    """

    model: str
    checkpoint: str
    device: str
    batch: int
    dtype: str
    guidance: float
    temperature: float
    top_k: int
    top_p: float
    min_p: float

    @classmethod
    def of(
        cls, checkpoint: Checkpoint, settings: Settings, dtype: np.dtype, pictures: int | None = None,
        devices: Any = None,
    ) -> "Key":  # fmt: skip
        """Returns the key of a call of ``pictures`` pictures (None: of whole batches) on the engine's devices; the
        method of its settings is not read."""
        batch = settings.batch if pictures is None else min(settings.batch, pictures)
        # Equal numbers are written alike in files.
        sampling = {name: float(getattr(settings, name)) for name in SAMPLING} | {"top_k": settings.top_k}
        return cls(checkpoint.model, digest(checkpoint), device_name(devices), batch, dtype.name, **sampling)

    def differences(self, other: "Key") -> list[str]:
        """Lists in words what this key is for that the other is not."""
        if self.checkpoint != other.checkpoint:
            same = " of other contents" if self.model == other.model else ""
            return [f"model {errors.short(self.model, 200)}{same}"]
        theirs = asdict(other)
        return [
            f"{name} {errors.short(ours, 200)}, not {theirs[name]}"
            for name, ours in asdict(self).items()
            if name != "model" and ours != theirs[name]
        ]


@dataclass(frozen=True)
class Tuned:
    """A file's contents.

    Attributes:
        key: what it is for.
        options: what a generation is given: a method, and a rule, as text.
        speedup: over plain decoding of the same pictures, as measured.
        substituted: the share of tokens that a relaxed rule put in place of the strict rule's there; 0 if strict.
        budget: the bound given for that share; None for no relaxed rules.
        confirmed: whether it was measured more than once.
        found: everything that was measured, for people.
        file: where it lies; None before it is written.
    """

    key: Key
    options: Mapping[str, str]
    speedup: float
    substituted: float = 0.0
    budget: float | None = None
    confirmed: bool = True
    found: Mapping[str, Any] = field(default_factory=dict)
    file: Path | None = None

    def to_json(self) -> str:
        """Returns the text of its file."""
        values = {"format": FORMAT, "version": VERSION} | asdict(self)
        del values["file"]
        return json.dumps(values, indent=1, default=list) + "\n"

    @property
    def words(self) -> str:
        """What it decodes with, on one line."""
        is_strict = Method.of(**{"method": TREES_METHOD, **self.options}).rule.is_strict
        relaxed = "" if is_strict else f", {self.substituted:.1%} of tokens substituted"
        how = "when tuned" if self.confirmed else "in a single turn, not confirmed"
        name = errors.short(" ".join(self.options.values()), 200)
        if self.options.get("method") == "ar":
            return f"{name}, plain decoding is the fastest {how}"
        return f"{name}, {self.speedup:.2f} times as fast as plain decoding {how}{relaxed}"


@dataclass(frozen=True)
class Found:
    """What there is for a call.

    Attributes:
        options: what the call should be given; empty where there is nothing for it.
        note: a line for people; empty where there is nothing to say.
        file: the file of tuned settings that the options are from; None where they are from none.
        rows: what ``auto`` chose the options from, the fastest first; empty where it chose nothing.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    file: Path | None = None
    rows: Sequence[Expected] = ()


def read_files(tuned: str | Path | None, folder: Path | None) -> tuple[list[Tuned], list[str], bool]:
    """Returns the tuned settings that a pipeline may use, what is wrong with files that cannot be read, and whether one
    file was asked for.

    ``tuned`` is ``auto`` for those in the checkpoint's folder, ``off`` or None for none, else one file; raises
    LanternError if there is no such file.
    """
    named = tuned not in (None, OFF, AUTO)
    if named and not Path(tuned).is_file():
        raise LanternError(f"tuned settings {str(tuned)!r}: there is no such file; give one, {AUTO} or {OFF}")
    found = folder.glob(f"{_PREFIX}*.json") if tuned == AUTO and folder is not None else ()
    files, good, wrong = [Path(tuned)] if named else sorted(found), [], []
    for file in files:
        try:
            good.append(read_tuned(file))
        except LanternError as error:
            wrong.append(str(error))
    return good, wrong, named


def find(good: list[Tuned], wrong: list[str], named: bool, key_of: Callable[[], Key]) -> Found:
    """Returns what there is for a call that does not steer.

    Args:
        good, wrong, named: from ``read_files``; there is always a note about a file that was asked for.
        key_of: returns the call's key; called only if there are files.
    """
    key = key_of() if good else None
    notes = []
    for tuned in good:
        differences = tuned.key.differences(key)
        if not differences:
            note = errors.printable(f"tuned: {tuned.words} ({tuned.file})")
            return Found(tuned.options, note, tuned.file)
        if named or tuned.key.model == key.model:
            notes.append((len(differences), tuned.file, differences))
    if notes:
        _, file, differences = min(notes, key=lambda note: note[:2])
        return Found(note=errors.printable(f"{file} is tuned for {'; '.join(differences)}: not used"))
    return Found(note=errors.printable(f"{wrong[0]}: not used") if wrong else "")


def read_tuned(file: Path) -> Tuned:
    """Returns a file's contents, every part checked; raises LanternError for any other file, or another version's."""
    try:
        values = read_json(file, _LARGEST)
        kind, options = (values.pop("format"), values.pop("version")), values["options"]
        tuned = Tuned(**values | {"key": Key(**values["key"]), "file": file})
        for name in (*SAMPLING, "batch"):
            NUMBERS[name].metadata["allowed"].check(name, getattr(tuned.key, name))
        # What is shown of it is read too.
        sound = kind == (FORMAT, VERSION) and bool(tuned.words)
        # A tree is written out: no other file is read for it.
        if sound and options.keys() <= {"method", *PARTS} and ".json" not in "".join(options.values()):
            return tuned
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise LanternError(f"{file} holds no tuned settings or is damaged, run `lantern tune` again")


def file_name(key: Key) -> str:
    """Returns the name of a key's file in a checkpoint's folder."""
    mark = hashlib.sha256(json.dumps(asdict(key), sort_keys=True).encode()).hexdigest()[:12]
    return f"{_PREFIX}batch{key.batch}-{mark}.json"


def digest(checkpoint: Checkpoint) -> str:
    """Returns ``Key.checkpoint``; empty for a checkpoint in memory, or one whose folder is gone by now."""
    try:
        found = checkpoint_digest(checkpoint.directory)[:16] if checkpoint.directory is not None else ""
    except (LanternError, OSError):
        return ""
    return f"{found}-{checkpoint.size}" if found and checkpoint.size else found
