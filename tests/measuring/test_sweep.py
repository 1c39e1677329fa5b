"""The configurations that lists expand to."""

import pytest

from lantern_jax.apps.measuring.sweep import check_methods, expand, parse_list


def test_every_combination_comes_once():
    lists = {"rules": ["strict", "near:tau=1"], "batches": [1, 8], "guidances": [1.0, 4.0]}
    found = expand(["gumbel", "eagle", "gumbel"], **lists)
    assert len(found) == len(set(map(str, found))) == 2 * 2 * 2 * 2
    assert found[0].given == {"method": "gumbel", "rule": "strict", "batch": 1, "guidance": 1.0}
    # Those with the same batch and guidance stand together.
    assert [(one.batch, one.guidance) for one in found] == [
        (batch, guidance) for batch in (1, 8) for guidance in (1.0, 4.0) for _ in range(4)
    ]


def test_plain_decoding_has_no_rule_and_others_their_own_unless_one_is_given():
    (plain, led), (_, strict) = expand(["ar", "led"]), expand(["ar", "led"], rules=["strict"])
    assert plain.options == led.options == {} and strict.options == {"rule": "strict"}
    (one,) = expand(["ar"], rules=["strict"], options={"temperature": 0.5})
    assert one.given == {"method": "ar", "temperature": 0.5, "batch": 1, "guidance": None}


def test_lists_are_checked():
    assert parse_list("batch", "1,8") == [1, 8] and parse_list("guidance", " 1, 4.5") == [1.0, 4.5]
    for name, text, line in (
        ("batch", "0", "batch 0 is not valid"),
        ("batch", "two", "batch 'two' is not valid: give a whole number"),
        ("batch", " , ", "--batch ' , ' is not valid: give one value or several"),
        ("guidance", "nan", "guidance nan is not valid"),
    ):
        with pytest.raises(ValueError, match=line):
            parse_list(name, text)


def test_methods_are_checked():
    assert check_methods(["led:initial=random", "jacobi"]) == ["led:initial=random", "jacobi"]
    assert "led" in check_methods(()) and "auto" not in check_methods(())
    for text, line in (
        ("led:initial=lft", "unknown initial 'lft': did"),
        ("led,jacobi", "spaces between them"),
    ):
        with pytest.raises(ValueError, match=line):
            check_methods([text])
