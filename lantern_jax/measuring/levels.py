"""What a level of the draft costs: drafting alone, as deep as it is and one level deep, in turns.

Axes: B batch.
"""

import statistics
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from lantern_jax.decoding.program import Program, State
from lantern_jax.decoding.stream import Stream
from lantern_jax.devices.compilation import compile_ahead, run_timed
from lantern_jax.engine import programs
from lantern_jax.engine.jobs import Run
from lantern_jax.measuring.alternate import alternate
from lantern_jax.measuring.subject import Subject
from lantern_jax.settings.draftings import DRAFTINGS
from lantern_jax.settings.settings import Settings

_REPEATS = 5
# Seconds of a call: long enough for its start and end not to count.
_CALL_SECONDS = 0.05


def levels_of(settings: Settings) -> int:
    """Returns how many levels are drafted one after the other; 0 without a drafter."""
    return 0 if settings.is_plain else DRAFTINGS[settings.drafting].levels(settings)


def seconds_a_level(subject: Subject, settings: Settings, run: Run) -> float | None:
    """Returns the seconds that each level after the first adds to a draft; None where there are no others.

    Args:
        run: a batch that was just started with these settings, on one device.
    """
    levels = levels_of(settings)
    if levels < 2 or len(run.state.length.devices()) > 1:
        return None
    batch = run.state.length.shape[0]
    state = programs.unstack_scalars(run.state)
    tasks = {}
    for name, chosen in (("deep", settings), ("shallow", DRAFTINGS[settings.drafting].one_level(settings))):
        job = subject.job(chosen)
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(0)))(jnp.arange(batch))
        arguments = (subject.engine.drafter(job.drafter), keys, job.sampling, state)
        function = partial(_draft_again, job.program)
        program, _ = compile_ahead(function, *arguments, jnp.int32(1))
        tasks[name] = partial(_a_draft, program, arguments)
    taken = alternate(tasks, _REPEATS)
    differences = [deep - shallow for deep, shallow in zip(taken["deep"], taken["shallow"], strict=True)]
    return max(statistics.median(differences), 0.0) / (levels - 1)


def _a_draft(program, arguments, repeat: int) -> float:
    """Returns the seconds of one draft, by a call of enough drafts to time."""
    _, once = run_timed(program, *arguments, jnp.int32(2))
    count = max(2, min(1000, int(2 * _CALL_SECONDS / max(once, 1e-6))))
    return run_timed(program, *arguments, jnp.int32(count))[1] / count


def _draft_again(program: Program, params, keys, sampling, state: State, count):
    """Drafts ``count`` times in a row, each time as if the last round had accepted nothing."""
    drafting, stream = program.drafting, Stream(program.target)

    def draft(i, carry):
        drafting_state, last = carry
        pending = stream.pending(state.decoded, state.length, state.pending)
        # Always 0, but not to the compiler: a draft comes after the one before it.
        pending = pending.replace(tokens=pending.tokens + jnp.minimum(last, 0))
        draws = program.coupling.draws(
            keys, state.length, state.decoded.rounds + i, drafting.max_depth + 1, program.target.vocab_size, sampling
        )  # fmt: skip
        made, drafting_state = drafting.propose(params, drafting_state, pending, draws, sampling)
        return drafting_state, jnp.max(made.tokens)

    return lax.fori_loop(jnp.int32(0), count, draft, (state.drafting, jnp.int32(0)))[1]
