"""Expectations of errors that a caller can mend."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from lantern_jax.io.errors import LanternError


@contextmanager
def refused(match: str) -> Iterator[pytest.ExceptionInfo]:
    """Expects a one-line LanternError that matches."""
    with pytest.raises(LanternError, match=match) as error:
        yield error
    assert "\n" not in str(error.value)


def refused_each(calls: Mapping[str, Callable[[], object]]) -> None:
    """Expects every call to raise a one-line ValueError that matches its key."""
    for match, call in calls.items():
        with pytest.raises(ValueError, match=match) as error:
            call()
        assert "\n" not in str(error.value)


def refused_with(work: Callable[[], object], *words: str) -> None:
    """Expects a one-line LanternError with these words."""
    with refused(".") as refusal:
        list(work())
    assert all(word in str(refusal.value) for word in words), str(refusal.value)
