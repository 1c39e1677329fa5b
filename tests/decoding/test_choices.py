"""Rules, draftings and couplings as text: what is read is what was written, and all else is one line."""

import pytest

from lantern_jax import Method
from lantern_jax.couplings import Gumbel, Rejection
from lantern_jax.decoding.choices import COUPLINGS, DRAFTINGS, RULES, meanings
from lantern_jax.decoding.fields import ByPlatform, Range, allowed_in
from lantern_jax.decoding.methods import AUTO, METHODS
from lantern_jax.draftings import Dynamic, Jacobi, Led, Tree
from lantern_jax.rules import LanternPlusPlus, Near
from tests.refused import refused, refused_each

TABLES = (RULES, DRAFTINGS, COUPLINGS)
NAMED = [(table, name) for table in TABLES for name in table]
# A range of a user's own field.
BIAS = Range(float, low=-1, high=1)
# Records with fields of every sort.
RECORDS = [
    (RULES, Near(tau=1.0)), (RULES, LanternPlusPlus(k=3, lam=1e-3 + 1)), (COUPLINGS, Gumbel("followed")),
    (DRAFTINGS, Tree(tree=[[1], [0], [0, 2], [0, 0]], echo=True)),
    (DRAFTINGS, Led(window=9, nodes=ByPlatform(20, 30))),
    (DRAFTINGS, Tree(drafter="medusa", mixture=[0.84, 0.17, 0.19, 0.8, 0, 1, 0.25, 1])),
    (DRAFTINGS, Dynamic(nodes=25, threshold=0.05)),
    (DRAFTINGS, Tree(tree=ByPlatform("chain", "mc_sim_7b_63", "0.0+3"))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "name"), NAMED, ids=lambda part: part if isinstance(part, str) else part.what
)
def test_a_record_is_read_from_its_own_text(table, name):
    record = table.read(name)
    assert table.text(record) == name and table.name_of(record) == name
    assert all(meanings(type(record)).values()), "a field without a meaning"
    for field, declared in allowed_in(type(record)).items():
        value = declared.metadata["otherwise"] if declared.default is None else declared.default
        if value is not None:
            changed = type(record)(**{field: value}) if field not in ("branches", "levels") else record
            assert table.read(table.text(changed)) == changed


@pytest.mark.parametrize(("table", "record"), RECORDS, ids=str)
def test_what_is_written_is_read_again(table, record):
    assert table.read(table.text(record)) == record and ":" in table.text(record)


@pytest.mark.parametrize("name", [name for name in METHODS if name != AUTO])
def test_a_method_is_its_parts(name):
    method = Method.of(name)
    assert method == Method(*METHODS[name].parts) == Method(**method.texts) == Method(*vars(method).values())
    assert Method.of(method, rule="near:tau=3").rule == Near(tau=3.0)


def test_a_method_is_one_value_however_it_is_given():
    assert Method("led:nodes=25", "near:tau=1") == Method(Led(nodes=25), Near(tau=1.0))
    assert Method.of("lantern++:k=3,lam=4,residual=published") == Method(
        Tree(), LanternPlusPlus(k=3, lam=4.0), Rejection("published")
    )
    assert DRAFTINGS.read("jacobi:window=16|32") == Jacobi(window=ByPlatform(16, 32))
    widths = [
        settled("jacobi:window=16|32|8", platform=name).tree.max_depth for name in ("cpu", "gpu", "tpu")
    ]
    assert widths == [16, 32, 8]
    assert settled("jacobi:window=16|32", platform="tpu").tree.max_depth == 32


def test_texts_that_say_nothing_valid_are_refused_in_one_line():
    form = "is not valid: give name:field=value"
    refused_each({
        "unknown rule 'naer': choose one of strict, ": lambda: RULES.read("naer"),
        "rule near has no field 'ratioo': did you mean ratio": lambda: RULES.read("near:ratioo=1"),
        "method led has no field 'tree': choose one of drafter, nodes, ": lambda: Method.of("led:tree=chain"),
        "rule strict has no field 'k': it has none": lambda: RULES.read("strict:k=1"),
        "method auto stands for others": lambda: Method.of("auto"),
        "rule 'near' has 'tau' twice": lambda: RULES.read("near:tau=1,tau=2"),
        f"'near:tau=' {form}": lambda: RULES.read("near:tau="),
        f"'near:=1' {form}": lambda: RULES.read("near:=1"),
        "tau -1.0 is not valid: give a finite number >= 0": lambda: RULES.read("near:tau=-1"),
        "tau 'inf' is not valid": lambda: RULES.read("near:tau=inf"),
        r"bias -1.5 is not valid: give a number in \[-1, 1\]": lambda: BIAS.check("bias", -1.5),
        "bias -1e-50 is not valid: .* within what 32 bits hold": lambda: BIAS.check("bias", -1e-50),
        "tau 'near:tau=1' is not valid": lambda: RULES.read("near:tau=near:tau=1"),
        "nodes 0 is not valid: give a whole number from 1": lambda: DRAFTINGS.read("led:nodes=0|3"),
        "tau -2.0 is not valid": lambda: RULES.read("near:tau=1|-2"),
        "nodes '1|2|3|4' is not valid: give one value, or one each": lambda: DRAFTINGS.read("led:nodes=1|2|3|4"),
        "unknown path 'shortest'": lambda: COUPLINGS.read("gumbel:path=shortest"),
        "unknown tree '0.-1'": lambda: DRAFTINGS.read("tree:tree=0.-1"),
        "rule 'Near' is not valid: give an object of that class": lambda: Method("plain", Near),
        "unknown coupling 7": lambda: Method("plain", coupling=7),
        rf"rule 'n+' \.\.\. \(49880 characters more\) {form}": lambda: RULES.read("n" * 50_000),
        "rule near has no field 'x+'": lambda: RULES.read(f"near:{'x' * 30_000}=1"),
    })  # fmt: skip
    for text in ("", "\n", "near\n", "near:tau=1\n2", "né:à=\x00", "near:tau=٣x", "led:nodes=½", ",=:|"):
        with refused("."):
            RULES.read(text)


def settled(method, drafters=("eagle",), platform="cpu", **parts):
    return Method.of(method, **parts).settled(platform, {}, 32, drafters).drafting


UNFIT = {
    "drafting led needs the coupling gumbel: it does not go with rejection": (
        "led",
        {"coupling": "rejection"},
    ),
    "rule near needs the coupling gumbel: it does not go with block": ("near", {"coupling": "block"}),
    "the coupling block needs a chain": ("echo:ranking=probability", {"coupling": "block"}),
    "rule lantern needs the coupling gumbel or rejection": ("block", {"rule": "lantern"}),
    "ranking gap needs the coupling gumbel": ("echo", {"coupling": "rejection"}),
    "needs a tree without gaps in child ranks": ("eagle:tree=0+2", {}),
    "the tree asks for child rank 32 of 32 codes": ("gumbel:tree=32", {}),
    "block reads the guesses that redraw maximal keeps": ("scd:redraw=maximal", {"coupling": "block"}),
    "nodes 999 of a dynamic tree is too many": ("eagle2:nodes=999", {}),
    "a drafter is wanted to guess, and this checkpoint has no drafter": ("gumbel", {"drafters": ()}),
    "medusa is wanted to guess, and its drafters are: eagle": ("medusa", {}),
}


@pytest.mark.parametrize("message", UNFIT)
def test_parts_that_do_not_fit_each_other_are_refused(message):
    method, parts = UNFIT[message]
    with refused(message):
        settled(method, **parts)


def test_parts_that_fit_are_settled():
    assert settled("jacobi", coupling="block").redraw is None and settled("scd").redraw is None
    assert settled("gumbel").drafter == "eagle" and settled("gumbel").tree == Tree(tree="chain").tree
    assert settled("led", platform="gpu").tree.num_nodes == 57
    both = Method("plain", "near:tau=1|2", "gumbel:path=longest|followed").settled("gpu", {}, 32, ())
    assert both == Method("plain", Near(tau=2.0), Gumbel("followed"))
