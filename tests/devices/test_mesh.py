"""A model over several devices: the same tokens, a part on each device, and little that is exchanged."""

import math
from functools import cache, partial

import jax
import jax.export
import numpy as np
import pytest
from jax.sharding import Mesh

import lantern_jax
from lantern_jax.devices.partition import device_grid, mesh_of, parameter_spec, place
from lantern_jax.engine import programs
from tests import meshes
from tests.cases import exhaustive
from tests.decoding.test_compiled import loop_lines
from tests.meshes import CODES, DIM, HEADS, LAYERS, TREE, collectives, decoded, started

OPERATIONS = ("all-reduce", "all-gather", "all-to-all")
FILTERS = {"top_k": 40, "top_p": 0.95}
WINDOW, SMALL = "window=4", "tree=0.0+1"
DYNAMIC = "nodes=6,children=3,frontier=2,depth=3"
METHODS = [
    *({"method": f"{name}:tree={TREE}"} for name in ("gumbel", "near", "eagle3", "medusa", "vadusa", "parallelspec")),
    *({"method": f"{name}:{WINDOW}"} for name in ("led", "jacobi", "sjd", "scd", "gsd", "pac")),
    *({"method": f"{name}:{DYNAMIC}"} for name in ("eagle2", "ddd")),
    *({"method": name} for name in ("ar", "echo", "cool", "block", "zipar")), {"method": "ar", "temperature": 0},
    {"method": f"jacobi:{WINDOW},branches=3,levels=2"}, {"method": f"lantern-g:tree={TREE},k=8", **FILTERS},
    {"method": f"eagle:tree={TREE}", **FILTERS}, {"method": f"lantern:{DYNAMIC},k=8"},
    {"method": f"lantern++:tree={TREE},k=8"},
]  # fmt: skip
MESHES = [(8, 1), (4, 2), (2, 4), (1, 8)]
REST = [("llamagen", shape, options) for shape in MESHES for options in METHODS]
REST += [(family, (2, 4), options) for family in ("anole", "lumina", "odd") for options in METHODS]


def name_of(value) -> str:
    if isinstance(value, dict):
        return "-".join(map(str, value.values()))
    return "x".join(map(str, value)) if isinstance(value, tuple) else value


@cache
def plain(family: str, **sampling):
    return decoded(family, 1, 1, method="ar", **sampling).tokens


@cache
def begun():
    """Returns (engine, run) of a drafter's tree on two groups of four devices; this run is never advanced."""
    return started("llamagen", 2, 4, method=f"gumbel:{SMALL}", **FILTERS)


@cache
def windowed():
    """Returns (engine, run) of a window and prompts of different lengths, likewise."""
    return started("lumina", 2, 4, method=f"jacobi:{WINDOW}")


def another(begun, family: str):
    engine, run = begun()
    return engine, engine.start(run.job, meshes.prompts(family, 4), seed=3)


def check_strict(made, family, **sampling):
    np.testing.assert_array_equal(made.tokens, plain(family, **sampling))
    assert made.accepted[:, 1:].sum() > 4, "nothing is accepted: the test sees plain decoding"


def test_a_mesh_changes_no_tokens():
    engine, run = another(windowed, "lumina")
    check_strict(engine.finish(engine.advance(run)), "lumina")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("family", "shape", "options"), REST, ids=name_of)
def test_a_mesh_changes_no_tokens_of_any_method(family, shape, options):
    one, ours = decoded(family, 1, 1, **options), decoded(family, *shape, **options)
    for name in ("tokens", "round_of_token", "accepted", "substituted"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(one, name), name)


def on_each(leaf) -> set[int]:
    return {shard.data.nbytes for shard in leaf.addressable_shards}


@pytest.mark.slow
def test_parameters_and_caches_are_split_and_stay_split():
    engine, run = another(begun, "llamagen")
    target, drafter = engine.parameters.target, engine.drafter("eagle")
    for path, leaf in jax.tree_util.tree_leaves_with_path((target, drafter)):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        parts = 1 if leaf.ndim == 1 and "fc" not in name else 4
        assert on_each(leaf) == {leaf.nbytes // parts}, name
    held = sum(max(on_each(leaf)) for leaf in jax.tree.leaves(target))
    assert held < 0.27 * sum(leaf.nbytes for leaf in jax.tree.leaves(target))
    for _ in range(2):
        caches = [*run.state.cache.layers, *run.state.drafting.committed.drafter.cache.layers]
        assert len(caches) == LAYERS + 1
        for leaf in jax.tree.leaves(caches):
            # 2 groups, with heads split over 4 devices.
            assert leaf.shape[2] == HEADS and on_each(leaf) == {leaf.nbytes // 8}
        run = engine.advance(run, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "filters",
    [exhaustive({}, id="all codes"), pytest.param(FILTERS, id="filtered")],
)
def test_a_round_exchanges_little_and_no_vocabulary(filters):
    engine, run = begun() if filters else started("llamagen", 2, 4, method=f"gumbel:{SMALL}")
    found = collectives(loop_lines(engine.program_text(run)))
    sums, gathers, swaps = ([shapes for name, shapes in found if name == one] for one in OPERATIONS)
    assert {operation for operation, _ in found} <= set(OPERATIONS)
    # The drafter's passes: over the committed tokens, then one per level; a look at the codes follows every pass.
    passes, looks = 2, 3
    of_layers = [shape for shapes in sums for shape in shapes if shape[-1:] == (DIM,)]
    assert len(of_layers) == 2 * (LAYERS + passes), "two per layer"
    assert len(sums) - len(of_layers) == 2 * looks, "the largest and the sum of a softmax"
    # The results of embeddings and of the drafter's layer that joins token and feature; the best codes of every look.
    assert len(gathers) == 1 + 2 * passes + looks + (looks if filters else 0), "and thresholds"
    assert len(swaps) == (looks if filters else 0)
    for operation, shapes in found:
        for shape in shapes:
            # A swap's shapes are those of its parts.
            assert operation == "all-to-all" or not {CODES, CODES // 4} & set(shape), (operation, shape)
            assert math.prod(shape) < 2 * 4 * CODES, (operation, shape)


def on_four_groups(name, **filters):
    begin = partial(started, "llamagen", 4, 2, method=f"{name}:{WINDOW}", **filters)
    return exhaustive(begin, "[4,2]", id=name)


@pytest.mark.parametrize(("begin", "groups"), [
    pytest.param(begun, "[2,4]", id="tree"), pytest.param(windowed, "[2,4]", id="window"),
    on_four_groups("gsd"), on_four_groups("jacobi", **FILTERS),
])  # fmt: skip
def test_groups_wait_for_no_other_group(begin, groups):
    """A group that is done with its pictures would never join: an exchange among all devices would hang for ever."""
    engine, run = begin()
    lines = [line for line in loop_lines(engine.program_text(run)) if collectives([line])]
    assert lines and not any("collective-permute" in line for line in lines)
    assert all(f"replica_groups={groups}<=[8]" in line for line in lines)


@pytest.mark.slow
def test_a_round_exports_for_accelerators_with_a_model_axis():
    engine, run = begun()
    arguments = (run.inputs, run.state, np.int32(1))
    advance = jax.jit(partial(programs.advance, run.job.program, mesh_of(engine.devices)))
    exported = jax.export.export(advance, platforms=["tpu", "cuda"])(*arguments)
    assert exported.platforms == ("tpu", "cuda") and exported.nr_devices == 8


@pytest.mark.slow
def test_a_mesh_changes_no_tokens_of_a_tree_and_slots_are_refilled():
    engine, run = another(begun, "llamagen")
    check_strict(engine.finish(engine.advance(run)), "llamagen", **FILTERS)
    (engine, run), expected = another(begun, "llamagen"), plain("llamagen", **FILTERS)
    run = engine.advance(run)
    run = engine.refill(run, np.array([1, 2]), meshes.prompts("llamagen", 2), np.array([0, 1]))
    np.testing.assert_array_equal(engine.finish(engine.advance(run)).tokens, expected[[0, 0, 1, 3]])


@pytest.mark.exhaustive
def test_the_loop_alone_takes_a_mesh_with_a_model_axis():
    mesh = Mesh(device_grid("data=2,model=4"), ("data", "model"))
    params = place({"target": meshes.target_parameters("llamagen")}, mesh)["target"]
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(3)))(np.arange(4, dtype=np.uint32))
    made = lantern_jax.autoregressive_decode(
        meshes.job("llamagen", method="ar").program.target, params, meshes.prompts("llamagen", 4), keys,
        guidance=np.full(4, 2, np.float32), mesh=mesh,
    )  # fmt: skip
    np.testing.assert_array_equal(made.tokens, plain("llamagen"))


def same_shape(axes: str) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(4, 2), axes.split())


@pytest.mark.parametrize(("mesh", "shape", "numbers"), [
    (None, (8, 1), range(8)), ("data=2,model=4", (2, 4), range(8)), (" model = 4", (1, 4), range(4)),
    ("data=3", (3, 1), range(3)), (same_shape("data model"), (4, 2), range(8)),
    (same_shape("model data"), (2, 4), [0, 2, 4, 6, 1, 3, 5, 7]),
    (Mesh(np.array(jax.devices()[2:4]), ["model"]), (1, 2), [2, 3]),
], ids=str)  # fmt: skip
def test_devices_stand_where_their_mesh_puts_them(mesh, shape, numbers):
    grid = device_grid(mesh)
    assert grid.shape == shape
    assert [device.id for device in grid.ravel()] == [jax.devices()[number].id for number in numbers]


@pytest.mark.parametrize(("mesh", "message"), [
    ("data=2;model=4", "mesh 'data=2;model=4' is not valid: give axes with their devices, such as"),
    ("tensor=4", "mesh 'tensor=4' is not valid: give axes"),
    ("model=0", "mesh 'model=0' is not valid: give axes"),
    ("data=4,model=4", "mesh 'data=4,model=4' is not valid: give at most 8 device"),
    (same_shape("batch model"), "mesh .*'batch', 'model'.* is not valid: give axes with the names data and model"),
    (4, "mesh 4 is not valid: give a text"),
], ids=str)  # fmt: skip
def test_an_invalid_mesh_is_refused_in_one_line(mesh, message):
    with pytest.raises(ValueError, match=message) as error:
        lantern_jax.load("demo", mesh=mesh)
    assert len(str(error.value).splitlines()) == 1


def test_axes_that_do_not_divide_stay_whole():
    for path, shape in (("qkv/kernel", (8, 3, 6, 4)), ("head/kernel", (8, 30)), ("norm/scale", (8,))):
        assert not any(parameter_spec(["target", *path.split("/")], shape, 4)), path
    assert parameter_spec(["target", "head", "kernel"], (8, 32), 4)[1] == "model"
    # A tokenizer stays whole, though one of its parts has the same name.
    assert not any(parameter_spec(["tokenizer", "params", "out", "kernel"], (4, 4, 8), 4))
