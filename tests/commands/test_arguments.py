"""How a command reads the text of an argument."""

import argparse

import pytest

from lantern_jax.apps.commands.arguments import wholes


def test_a_list_holds_each_number_once():
    assert wholes("3,0,12") == [3, 0, 12]
    for text in ("1,1", "1,01", "1,,2", "-1", "1.5", ""):
        with pytest.raises(argparse.ArgumentTypeError):
            wholes(text)
