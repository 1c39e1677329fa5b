"""Tokens per pass of the guesses that ``auto`` chooses from, as a checkpoint keeps them in its metadata."""

from lantern_jax.apps.measuring.paths import tokens_a_pass
from lantern_jax.apps.measuring.subject import Subject
from lantern_jax.settings.auto import TOKENS


def tokens_of_guesses(subject: Subject, pictures: int, batch: int = 8) -> dict[str, float]:
    """Decodes ``pictures`` pictures with all guesses that this model has; returns tokens per pass by their text."""
    found = {}
    for guesses in TOKENS:
        if subject.recipe.drafters or not guesses.passes:
            job = subject.job(subject.settings(guesses.knobs | {"batch": batch}))
            rounds = subject.decode(job, 0, pictures, min(batch, pictures)).rounds
            found[str(guesses)] = round(tokens_a_pass(rounds, len(subject.free) - 1)[0], 3)
    return found
