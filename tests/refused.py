"""An error that a caller can mend, as tests expect it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lantern_jax.io.errors import LanternError


@contextmanager
def refused(match: str) -> Iterator[pytest.ExceptionInfo]:
    """Expects a LanternError of one line that matches."""
    with pytest.raises(LanternError, match=match) as error:
        yield error
    assert "\n" not in str(error.value)
