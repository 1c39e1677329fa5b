"""The configurations that lists expand to."""

import pytest

from lantern_jax.apps.measuring.sweep import expand, parse_list, parse_methods


def names(configurations):
    return [(one.method, dict(one.knobs), one.batch, one.guidance) for one in configurations]


def variants(text):
    return parse_methods(text).values()


def test_every_combination_comes_once():
    lists = {
        "trees": ["chain", "dynamic"],
        "rules": ["strict", "near"],
        "batches": [1, 8],
        "guidances": [1.0, 4.0],
    }
    found = expand(variants("gumbel,eagle"), **lists)
    assert len(found) == len(set(map(str, found))) == 2 * 2 * 2 * 2 * 2
    assert names(found)[0] == ("gumbel", {"tree": "chain", "rule": "strict"}, 1, 1.0)
    # Those with the same batch and guidance stand together.
    assert [(one.batch, one.guidance) for one in found] == [
        (batch, guidance) for batch in (1, 8) for guidance in (1.0, 4.0) for _ in range(8)
    ]


def test_a_method_keeps_the_tree_that_defines_it():
    given = variants("ar,led,block,gumbel:tree=demo_57,gumbel")
    found = expand(given, trees=["chain", "none"], rules=["strict"])
    assert names(found) == [
        ("ar", {}, 1, None),
        ("led", {"rule": "strict"}, 1, None),
        ("block", {"rule": "strict"}, 1, None),
        ("gumbel", {"tree": "demo_57", "rule": "strict"}, 1, None),
        ("gumbel", {"tree": "chain", "rule": "strict"}, 1, None),
        ("gumbel", {"tree": "none", "rule": "strict"}, 1, None),
    ]


def test_a_variants_own_knobs_override_those_of_all():
    found = expand(variants("led:window=8,led"), knobs={"window": 5, "temperature": 0.5})
    assert [one.knobs["window"] for one in found] == [8, 5]
    assert found[0].given == {"method": "led", "window": 8, "temperature": 0.5, "batch": 1, "guidance": None}


def test_lists_are_checked():
    assert parse_list("batch", "1,8") == [1, 8] and parse_list("guidance", " 1, 4.5") == [1.0, 4.5]
    assert parse_list("tree", "chain,dynamic,none") == ["chain", "dynamic", "none"]
    for name, text, line in (
        ("batch", "0", "batch 0 is not valid"),
        ("batch", "two", "batch 'two' is not valid: give a whole number"),
        ("batch", " , ", "--batch ' , ' is not valid: give one value or several"),
        ("guidance", "nan", "guidance nan is not valid"),
        ("rule", "strict,lax", "unknown rule 'lax'"),
        ("tree", "oak", "unknown tree 'oak'"),
    ):
        with pytest.raises(ValueError, match=line):
            parse_list(name, text)


def test_names_of_a_variant_are_checked():
    assert parse_methods("led:initial=random")["led:initial=random"]["initial"] == "random"
    for text, line in (
        ("led:initial=lft", "unknown initial 'lft': did you mean left?"),
        ("led,eagle:tree=typo", "unknown tree 'typo'"),
        ("jacobi:rule=lax", "unknown rule 'lax'"),
    ):
        with pytest.raises(ValueError, match=line):
            parse_methods(text)
