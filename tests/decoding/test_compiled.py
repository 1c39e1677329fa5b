"""What the compiler makes of the loop: no copy of the cache, no sort over the vocabulary, no trip to the host."""

import math
import re
from functools import partial

import jax
import jax.export
import jax.numpy as jnp
import pytest

from lantern_jax import engine
from lantern_jax.decoding import loop
from lantern_jax.decoding.acceptance import Codebook, LanternPlusPlus
from lantern_jax.decoding.couplings import as_coupling
from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.loop import Inputs, Program
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import named_tree
from lantern_jax.models.drafter import DrafterConfig, DrafterModel, eagle_drafter
from lantern_jax.models.llamagen import LlamaGen, LlamaGenConfig, llamagen_target
from tests.quick_compilation import AS_USERS_COMPILE

VOCAB, GRID, DIM, HEADS = 1000, 8, 48, 3
TARGET = LlamaGenConfig(DIM, 2, HEADS, vocab_size=VOCAB, grid=GRID, hidden_dim=96, num_labels=11)
DRAFTER = DrafterConfig(DIM, HEADS, 96, vocab_size=VOCAB, grid=GRID, prefix_length=1)
TREE = named_tree("naive_extend_57")
WIDTH = DIM // HEADS
# Shapes of the kernels of a layer, as stored and as matrices, and of the head.
STORED = ((DIM, 3, HEADS, WIDTH), (HEADS, WIDTH, DIM), (DIM, 2, 96))
KERNELS = (*STORED, (DIM, 3 * DIM), (DIM, DIM), (DIM, 2 * 96), (96, DIM), (DIM, VOCAB))


def abstract_inputs(batch: int) -> Inputs:
    """Shapes of the inputs of ``loop.decode``."""
    shape = jax.ShapeDtypeStruct

    def target():
        labels, tokens = jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, GRID * GRID), jnp.int32)
        return LlamaGen(TARGET).init(jax.random.key(0), labels, tokens)

    def drafter():
        features, tokens = jnp.zeros((1, 1, 1, DIM)), jnp.zeros((1, 1, 1), jnp.int32)
        rotary, mask = jnp.zeros((1, 1, 1, DIM // HEADS // 2, 2)), jnp.ones((1, 1, 1, 1), bool)
        return DrafterModel(DRAFTER).init(jax.random.key(0), features, tokens, rotary, mask)

    head = shape((DIM, VOCAB), jnp.float32)
    return Inputs(
        jax.eval_shape(target),
        {"drafter": jax.eval_shape(drafter), "head": head},
        shape((batch, 1), jnp.int32),
        jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch)),
        shape((batch,), jnp.float32),
        shape((batch,), jnp.bool_),
        SamplingParams(
            shape((), jnp.float32), shape((), jnp.int32), shape((), jnp.float32), filters=("top_k", "top_p")
        ),
        LanternPlusPlus(shape((), jnp.float32), 10),
        Codebook(shape((VOCAB, 10), jnp.int32), shape((VOCAB, 8), jnp.float32)),
    )


def loop_lines(hlo: str) -> list[str]:
    """Lines of the optimised HLO that run inside some while loop, called computations included."""
    computations, name = {}, None
    for line in hlo.splitlines():
        if line and not line.startswith((" ", "}")) and line.endswith("{"):
            name = line.split()[1 if line.startswith("ENTRY") else 0].lstrip("%")
            computations[name] = []
        elif name is not None and line.startswith(" "):
            computations[name].append(line.strip())
    calls = re.compile(r"(?:body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
    lists = re.compile(r"(?:branch_computations|called_computations|calls)=\{([^}]*)\}")
    bodies = {
        m for lines in computations.values() for line in lines for m in re.findall(r"body=%?([\w.\-]+)", line)
    }
    inside, queue = set(), sorted(bodies)
    while queue:
        current = queue.pop()
        if current in inside or current not in computations:
            continue
        inside.add(current)
        for line in computations[current]:
            queue += calls.findall(line)
            queue += [part.strip().lstrip("%") for group in lists.findall(line) for part in group.split(",")]
    return [line for current in sorted(inside) for line in computations[current]]


def made(line: str) -> tuple[str, list[int]]:
    """Operation and result dimensions of an HLO line ('', [] for anything else, tuples included)."""
    found = re.match(r"(?:ROOT )?%?[\w.\-]+ = \w+\[([\d,]*)\]\S* ([\w\-]+)\(", line)
    if not found:
        return "", []
    return found[2], [int(size) for size in found[1].split(",") if size]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("coupling", ["gumbel", "rejection"])
def test_the_loop_copies_no_cache_sorts_nothing_and_stays_on_the_device(batch, coupling):
    program = Program(llamagen_target(TARGET), eagle(eagle_drafter(DRAFTER), TREE), as_coupling(coupling))
    lowered = loop._decode_jit.lower(program, abstract_inputs(batch))
    hlo = lowered.compile(compiler_options=AS_USERS_COMPILE).as_text()
    lines = loop_lines(hlo)
    slots = GRID * GRID + TREE.max_depth + 1
    caches = {2 * batch * DIM * (slots + prefix) for prefix in (0, 1)}
    sizes, writes = [], 0
    for line in lines:
        operation, shape = made(line)
        size = 1
        for dimension in shape:
            size *= dimension
        writes += operation in ("dynamic-update-slice", "scatter") and size in caches
        if size in caches and operation in ("copy", "transpose", "concatenate", "convert", "pad", "reverse"):
            sizes.append(line)
    assert writes >= 6, (
        "the test does not see the cache being written: is it still looking at the right loop?"
    )
    assert not sizes, sizes
    assert not [line for line in lines if re.search(r"= .*\bsort\(", line)]
    host = re.compile(r"\b(infeed|outfeed|send|recv)(-done)?\(|callback|MoveToHost")
    assert not [line for line in lines if host.search(line.split(", metadata=")[0])]


def test_a_piece_of_a_run_copies_no_cache_on_its_way_in_or_out():
    program = Program(llamagen_target(TARGET), eagle(eagle_drafter(DRAFTER), TREE))
    inputs, number = abstract_inputs(1), jax.ShapeDtypeStruct((), jnp.int32)
    keys, state = jax.eval_shape(
        partial(engine._start, program, None), inputs.target_params, inputs.drafting_params, inputs.conditioning,
        number, jax.ShapeDtypeStruct((1,), jnp.uint32), inputs.guidance, inputs.sampling, inputs.active,
    )  # fmt: skip
    lowered = jax.jit(partial(engine._advance, program, None), donate_argnums=7).lower(
        inputs.target_params, inputs.drafting_params, inputs.guidance, inputs.sampling, inputs.rule, inputs.codebook,
        keys, state, number,
    )  # fmt: skip
    hlo = lowered.compile(compiler_options=AS_USERS_COMPILE).as_text()
    entry = [made(line.strip()) for line in hlo[hlo.index("\nENTRY") :].splitlines()]
    caches = sorted(leaf.shape for layer in state.cache.layers for leaf in layer)
    assert sum(operation == "parameter" and tuple(shape) in caches for operation, shape in entry) == 4
    passed_on = ("parameter", "bitcast", "get-tuple-element")
    strange = [
        found for found in entry if math.prod(found[1]) == math.prod(caches[0]) and found[0] not in passed_on
    ]
    assert not strange, strange


def test_bfloat16_parameters_are_not_copied_into_float32():
    """A CPU has no products of bfloat16 of its own: one convert a matrix, hoisted, would triple the parameters."""
    program = Program(
        llamagen_target(TARGET, jnp.bfloat16), eagle(eagle_drafter(DRAFTER, jnp.bfloat16), TREE)
    )
    inputs = abstract_inputs(1)
    narrow = [
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), params)
        for params in (inputs.target_params, inputs.drafting_params)
    ]
    inputs = inputs.replace(target_params=narrow[0], drafting_params=narrow[1])
    hlo = loop._decode_jit.lower(program, inputs).compile(compiler_options=AS_USERS_COMPILE).as_text()
    kernels = "|".join(",".join(map(str, shape)) for shape in KERNELS)
    assert re.search(rf"bf16\[(?:{kernels})\]", hlo)
    assert not re.findall(rf"= f32\[(?:{kernels})\]", hlo)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@pytest.mark.parametrize("devices", [1, 8])
def test_the_loop_exports_for_accelerators(platform, devices):
    program = Program(llamagen_target(TARGET), eagle(eagle_drafter(DRAFTER), TREE))
    if devices == 1:
        function = jax.jit(lambda inputs: loop.decode(program, inputs))
    else:
        mesh = jax.make_mesh((devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        function = jax.jit(lambda inputs: loop._decode_sharded(program, mesh, "data", inputs))
    exported = jax.export.export(function, platforms=[platform])(abstract_inputs(8))
    assert exported.platforms == (platform,)
    assert exported.nr_devices == devices
    assert exported.out_avals[0].shape == (8, GRID * GRID)
