"""Cases of a parametrized test that quick runs leave to the workflow, or to exhaustive runs."""

import pytest


def slow(*values, id=None):
    """Marks a case that the workflow runs."""
    return pytest.param(*values, marks=pytest.mark.slow, id=id)


def exhaustive(*values, id=None):
    """Marks a case that only exhaustive runs have."""
    return pytest.param(*values, marks=pytest.mark.exhaustive, id=id)
