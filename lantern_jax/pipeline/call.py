"""One call of a pipeline: what was asked, settled and checked."""

from collections.abc import Sequence
from dataclasses import dataclass

from lantern_jax.pipeline.inputs import Start
from lantern_jax.settings.settings import Options, Settings
from lantern_jax.settings.tuned import Found


class CallOptions(Options, total=False):
    """The keyword arguments of a call, besides its prompts; ``Pipeline.generate`` says what they mean."""

    num: int
    seed: int
    first: int
    start: Start | Sequence[Start] | None
    keep_rows: int | None
    negative_prompt: str | Sequence[str] | None


@dataclass(frozen=True)
class Call:
    """What a call makes, and how; every part was checked when it was settled.

    Attributes:
        settings: what it is decoded with.
        found: where their method is from, if the call does not say how to decode.
        prompts: names of the prompts.
        num: pictures per prompt.
        seed, first: picture i draws from ``seed`` and ``first`` + i.
        keep_rows: rows of codes that stay of given pictures; None without such pictures.
        notes: remarks for the user: on tuned settings, and on what has no effect.
        negatives: the negative prompt of each prompt; empty where there are none.
        ignored: lines on what is ignored of prompts, which were warned about.
    """

    settings: Settings
    found: Found
    prompts: tuple[str, ...]
    num: int
    seed: int
    first: int
    keep_rows: int | None
    notes: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Pictures of the call."""
        return self.num * len(self.prompts)
