"""What an engine is asked to decode, and how far it has got.

Axes: n sequences asked for, B sequences of a program (with padding), T stream tokens.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from lantern_jax.decoding.acceptance import Rule, Strict
from lantern_jax.decoding.program import Inputs, Program, State
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.engine.generation import Timing
from lantern_jax.engine.program_cache import ProgramKey


@dataclass(frozen=True)
class Job:
    """How a batch is decoded.

    Attributes:
        program: what is compiled.
        guidance: the scale of every sequence; 1 is no guidance and halves the work. It can be swept without compiling
            again, except to or from 1.
        sampling, rule: can be swept too, except for what is static in them.
        drafter: the drafter whose parameters the drafting takes; None if it takes none.
        own: whether it holds a rule, a drafting or a coupling of the caller's: few such programs are kept.
        made_from: text that determines a program, and that program; None where no such text is known.
    """

    program: Program
    guidance: float = 1.0
    sampling: SamplingParams = field(default_factory=SamplingParams.create)
    rule: Rule = field(default_factory=Strict)
    drafter: str | None = None
    own: bool = False
    made_from: tuple[str, Program] | None = None

    @property
    def name(self) -> str:
        """The text that determines its program; empty if there is none, as for a program that was changed since."""
        return self.made_from[0] if self.made_from and self.made_from[1] is self.program else ""


@dataclass(frozen=True)
class Run:
    """A batch in progress. ``Engine.advance`` donates its buffers: continue with the run that it returns.

    Attributes:
        job: what it was started with.
        seeds, numbers: int64 [n], what the sequence in each slot draws from.
        lengths: int32 [n], the known stream tokens of each sequence.
        timing: seconds so far.
        inputs: what its program reads, on the devices, without conditioning.
        state: the loop's state, on the devices.
        conditioning: of any one sequence, leaves [1, ...].
        key: of the program that advances it.
    """

    job: Job
    seeds: Int[np.ndarray, " n"]
    numbers: Int[np.ndarray, " n"]
    lengths: Int[np.ndarray, " n"]
    timing: Timing
    inputs: Inputs
    state: State
    conditioning: Any
    key: ProgramKey

    @property
    def total(self) -> int:
        """Stream tokens of a sequence, T."""
        return self.job.program.target.num_tokens

    @property
    def finished(self) -> Bool[np.ndarray, " n"]:
        """Which sequences are done, bool [n]."""
        return self.lengths >= self.total

    @property
    def done(self) -> bool:
        """Whether all sequences are done."""
        return bool(self.finished.all())
