"""Readers accept changed files and numbers, or say in one line why not."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lantern_jax.decoding.choices import COUPLINGS, DRAFTINGS, RULES
from lantern_jax.decoding.fields import Range, allowed_in, check_count, check_numbers, check_seed
from lantern_jax.decoding.methods import Method
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.devices.partition import mesh_sizes
from lantern_jax.settings.settings import Settings
from tests.hostile.files import KINDS, READERS, HostileFile

# An index of shards is read only with its shards.
READ = [kind for kind in KINDS if kind != "index"]
# Random examples would make a test that fails by chance.
quick = settings(
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
few = settings(quick, max_examples=60)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=4),
    st.sampled_from([2**31, 2**32, 1e39, 1e-46]),
)
# Where in a file (a share of its length); the bytes put there; the number taken away.
EDITS = st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=9), st.integers(0, 9)), min_size=1, max_size=4)


def takes_or_tells(work, *arguments) -> bool:
    """Tells whether a function takes arguments; any error but a ValueError of one line is raised."""
    try:
        work(*arguments)
    except ValueError as error:
        assert "\n" not in str(error).strip() and str(error)
        return False
    return True


@cache
def good(kind: str) -> HostileFile:
    """Returns a file of a kind that is read."""
    return next(file for file in KINDS[kind](seed=0) if file.read)


@pytest.mark.parametrize("kind", READ)
@few
@given(edits=EDITS)
def test_changed_files_are_read_or_refused(kind, tmp_path, edits):
    if kind == "torch":
        pytest.importorskip("torch")
    content = good(kind).content
    for share, put, taken in edits:
        place = int(share * len(content))
        content = content[:place] + put + content[place + taken :]
    path = tmp_path / f"changed{good(kind).suffix}"
    path.write_bytes(content)
    takes_or_tells(READERS[kind], path)


@quick
@given(paths=st.lists(st.lists(st.integers(-1, 3), max_size=4), max_size=6))
def test_any_paths_make_a_tree_or_are_refused(paths):
    """Exactly the trees with all beginnings of every path, and each path once, are accepted."""
    known = {(), *map(tuple, paths)}
    whole = (
        all(path and min(path) >= 0 and tuple(path[:-1]) in known for path in paths)
        and len(known) == len(paths) + 1
    )
    assert takes_or_tells(DraftTree.from_paths, paths) == whole


# Every field that a user chooses, with the class that has it.
FIELDS = [
    (kind, name)
    for kind in (Settings, *RULES.values(), *DRAFTINGS.values(), *COUPLINGS.values())
    for name in allowed_in(kind)
]


@quick
@given(field=st.sampled_from(FIELDS), value=NUMBERS)
def test_any_value_of_any_field_is_accepted_or_refused(field, value):
    """An accepted value is one that a device can compute with."""
    (kind, name), found = field, []
    given = {"method": Method("plain")} if kind is Settings else {}
    if not takes_or_tells(lambda: found.append(kind(**given, **{name: value}))) or value is None:
        return
    if isinstance(allowed_in(kind)[name].metadata["allowed"], Range):
        held = getattr(found[0], name)
        assert math.isfinite(held) and not isinstance(value, bool)
        assert np.isclose(float(np.float32(held)), held, rtol=1e-6, atol=0)


@quick
@given(num=NUMBERS, seed=NUMBERS, first=NUMBERS, prompts=st.integers(1, 3))
def test_any_numbers_of_pictures_are_accepted_or_refused(num, seed, first, prompts):
    if takes_or_tells(check_numbers, prompts, num, seed, first):
        assert 0 <= first <= first + num * prompts <= 2**32 and 0 <= seed < 2**32
    takes_or_tells(check_count, "num", num), takes_or_tells(check_seed, seed)


@quick
@given(text=st.text(alphabet="datmodel=,0123 -", max_size=20))
def test_any_mesh_is_accepted_or_refused(text):
    if takes_or_tells(mesh_sizes, text):
        assert all(number >= 1 for number in mesh_sizes(text).values())
