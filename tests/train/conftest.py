"""What tests of training share."""

import jax
import pytest


@pytest.fixture
def optax_promotion():
    """Standard promotion: optax turns step counts into floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield
