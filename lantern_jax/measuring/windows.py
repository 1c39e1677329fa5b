"""Tokens per pass of the windows that ``auto`` chooses from, as a checkpoint keeps them in its metadata."""

from lantern_jax.checkpoints.windows import write_acceptance
from lantern_jax.measuring.paths import tokens_a_pass
from lantern_jax.measuring.subject import Subject
from lantern_jax.settings.choice import TOKENS, window_knobs


def window_acceptance(subject: Subject, pictures: int, batch: int = 8) -> dict[str, float]:
    """Decodes ``pictures`` pictures with each window available for this model; returns tokens per pass for JSON."""
    codes, found = subject.recipe.config.num_codes, []
    for point in TOKENS:
        if point.branches <= codes and (subject.recipe.drafters or not point.passes):
            job = subject.job(subject.settings(window_knobs(point) | {"batch": batch}))
            rounds = subject.decode(job, 0, pictures, min(batch, pictures)).rounds
            found.append((point, tokens_a_pass(rounds, len(subject.free) - 1)[0]))
    return write_acceptance(found)
