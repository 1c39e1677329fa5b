"""A user's own knobs: numbers below 0, and the range of 32 bits."""

import numpy as np

from lantern_jax import Knob
from tests.refused import refused_each

BIAS, SHIFT = Knob("bias", float, 0.0, "", low=-1, high=1), Knob("shift", int, 0, "", low=-(2**40))


def test_knobs_may_be_below_zero():
    for value in (-1, -0.5, np.float32(-0.5), np.int8(-1), 0.0, 0.25):
        BIAS.check(value)
    SHIFT.check(-7)
    assert BIAS.read("-0.5") == -0.5
    refused_each({
        r"bias -1.5 is not valid: give a number in \[-1, 1\]": lambda: BIAS.check(-1.5),
        "bias -1e-50 is not valid: .* within what 32 bits hold": lambda: BIAS.check(-1e-50),
        "shift -4294967296 is not valid: give a whole number from -2147483647": lambda: SHIFT.check(-(2**32)),
    })  # fmt: skip
