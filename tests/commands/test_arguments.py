"""How a command reads the text of an argument."""

from lantern_jax.apps.commands.arguments import wholes
from tests.refused import refused


def test_a_list_holds_each_number_once():
    assert wholes("3,0,12") == [3, 0, 12]
    for text in ("1,1", "1,01", "1,,2", "-1", "1.5", ""):
        with refused("is not valid"):
            wholes(text)
