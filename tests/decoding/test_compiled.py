"""The compiled loop: no copy of the cache, no sort over the vocabulary, no trip to the host.

A branch or loop that depends on data is a trip to the host too: a GPU's host reads every predicate. The decoding loop
itself is the only one.
"""

import math
import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from lantern_jax.decoding import loop
from lantern_jax.decoding.acceptance import Codebook, LanternPlusPlus
from lantern_jax.decoding.choices import COUPLINGS
from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.program import Inputs, Program
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.drafters.eagle import drafter_shapes, eagle_drafter
from lantern_jax.drafters.sequence import DrafterConfig
from lantern_jax.engine import programs
from lantern_jax.families.llamagen.model import LlamaGenConfig
from lantern_jax.families.llamagen.weights import gpt_shapes
from lantern_jax.families.registry import target_of
from tests import lowering
from tests.cases import exhaustive
from tests.quick_compilation import AS_USERS_COMPILE

from . import toy_models as toys
from .topologies import traced_drafting

VOCAB, GRID, DIM, HEADS = 1000, 8, 48, 3
TARGET = LlamaGenConfig(DIM, 1, HEADS, vocab_size=VOCAB, grid=GRID, hidden_dim=96, num_labels=11)
DEEPER = replace(TARGET, num_layers=2)
DRAFTER = DrafterConfig(DIM, HEADS, 96, vocab_size=VOCAB, grid=GRID, prefix_length=1)
SMALL = DraftTree.from_paths([(0,), (1,), (0, 0), (0, 1), (0, 0, 0)])
# Shapes of a layer's kernels, as stored and as matrices, and of the head's.
STORED = ((DIM, 3, HEADS, DIM // HEADS), (HEADS, DIM // HEADS, DIM), (DIM, 2, 96))
KERNELS = (*STORED, (DIM, 3 * DIM), (DIM, DIM), (DIM, 2 * 96), (96, DIM), (DIM, VOCAB))


def abstract_inputs(batch: int, target: LlamaGenConfig = TARGET) -> Inputs:
    """Makes the shapes of ``loop.decode``'s inputs."""
    shape = jax.ShapeDtypeStruct
    return Inputs(
        gpt_shapes(target),
        {"drafter": drafter_shapes(DRAFTER), "head": shape((DIM, VOCAB), jnp.float32)},
        shape((batch, 1), jnp.int32),
        jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch)),
        shape((batch,), jnp.float32),
        shape((batch,), jnp.bool_),
        SamplingParams(
            shape((), jnp.float32),
            shape((), jnp.int32),
            shape((), jnp.float32),
            shape((), jnp.float32),
            filters=("top_k", "top_p"),
        ),
        LanternPlusPlus(10, shape((), jnp.float32)),
        Codebook(shape((VOCAB, 10), jnp.int32), shape((VOCAB, 8), jnp.float32)),
    )


def strict_inputs(batch: int) -> Inputs:
    """Makes the shapes of inputs with the rule that compiles fastest."""
    return abstract_inputs(batch).replace(rule=loop.as_rule("strict"), codebook=None)


def loop_lines(hlo: str) -> list[str]:
    """Returns the lines of optimised HLO that run inside a while loop, called computations included."""
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
    """Returns the operation and result dimensions of an HLO line ('', [] for anything else, tuples included)."""
    found = re.match(r"(?:ROOT )?%?[\w.\-]+ = \w+\[([\d,]*)\]\S* ([\w\-]+)\(", line)
    if not found:
        return "", []
    return found[2], [int(size) for size in found[1].split(",") if size]


def check_lines(lines: list[str]) -> None:
    """Checks that nothing is sorted and nothing leaves the device."""
    assert not [line for line in lines if re.search(r"= .*\bsort\(", line)]
    host = re.compile(r"\b(infeed|outfeed|send|recv)(-done)?\(|callback|MoveToHost")
    assert not [line for line in lines if host.search(line.split(", metadata=")[0])]


def check_caches(lines: list[str], batch: int, depth: int, least: int) -> None:
    """Checks that caches are written at least ``least`` times and that none is copied."""
    slots = GRID * GRID + depth + 1
    caches = {2 * batch * DIM * (slots + prefix) for prefix in (0, 1)}
    operations = [(*made(line.strip()), line) for line in lines]
    found = [(name, line) for name, shape, line in operations if shape and math.prod(shape) in caches]
    written = [name for name, _ in found if name in ("dynamic-update-slice", "scatter")]
    assert len(written) >= least, "no cache is seen being written: does the test look at the right loop?"
    moves = ("copy", "transpose", "concatenate", "convert", "pad", "reverse", "copy-start")
    assert not [line for name, line in found if name in moves]


# The last test covers trees, the shared noise and a relaxed rule.
def test_the_loop_copies_no_cache_sorts_nothing_and_stays_on_the_device():
    lowered = loop._decode_jit.lower(Program(target_of(TARGET)), strict_inputs(3))
    lines = loop_lines(lowered.compile(compiler_options=AS_USERS_COMPILE).as_text())
    check_caches(lines, 3, 0, 2)
    check_lines(lines)


@pytest.mark.slow
def test_bfloat16_parameters_are_not_copied_into_float32():
    """A CPU has no bfloat16 products: a hoisted convert of each matrix would triple the parameters."""
    drafting = eagle(eagle_drafter(DRAFTER, jnp.bfloat16), DraftTree.chain(2))
    program = Program(target_of(TARGET, jnp.bfloat16), drafting)
    inputs = strict_inputs(1)
    narrow = [
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), params)
        for params in (inputs.target_params, inputs.drafting_params)
    ]
    inputs = inputs.replace(target_params=narrow[0], drafting_params=narrow[1])
    hlo = loop._decode_jit.lower(program, inputs).compile(compiler_options=AS_USERS_COMPILE).as_text()
    kernels = "|".join(",".join(map(str, shape)) for shape in KERNELS)
    assert re.search(rf"bf16\[(?:{kernels})\]", hlo)
    assert not re.findall(rf"= f32\[(?:{kernels})\]", hlo)


# Draftings and rules by name, lowered for a GPU, are in tests/test_methods.py; here tokens are forced.
@pytest.mark.parametrize(
    ("platform", "coupling", "greedy", "traced"),
    [
        ("tpu", "gumbel", True, False),
        exhaustive("cuda", "rejection", False, True),
        exhaustive("cpu", "rejection", False, True),
    ],
)
def test_nothing_branches_on_data_and_one_loop_depends_on_it(platform, coupling, greedy, traced):
    """Branches are sought before compiling, which may fold here what stays elsewhere; the loop is the decoding loop."""
    target, params, conditioning = toys.stream("lumina", 3)
    drafter, drafter_params = toys.random_drafter("eagle", "lumina")
    drafting, vocab = eagle(drafter, SMALL), target.vocab_size
    inputs = Inputs(
        params, drafter_params, conditioning, toys.sequence_keys(0, 3), jnp.full(3, 2.0), jnp.ones(3, bool),
        SamplingParams.create(0.0 if greedy else 0.9, 5, 0.9), loop.as_rule("lantern++:k=4"),
        Codebook(jnp.zeros((vocab, 4), jnp.int32), jnp.zeros((vocab, 2))),
    )  # fmt: skip
    program = Program(target, traced_drafting(drafting) if traced else drafting, COUPLINGS.read(coupling))
    lowered = lowering.lower(partial(loop.decode, program), inputs, platform=platform)
    assert not re.search(r"= .*\bconditional\(", lowered.as_text(dialect="hlo"))
    if platform == "cpu":
        loops = re.findall(r"^.*= .*\bwhile\(.*$", lowered.compile().as_text(), re.MULTILINE)
        assert len([line for line in loops if '"known_trip_count"' not in line]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("coupling", "batch"), [("gumbel", 3), exhaustive("rejection", 1)])
def test_a_piece_of_a_generation_works_in_the_memory_it_was_given(coupling, batch):
    """The engine's program takes over its state's memory: every leaf is aliased to the result, and no cache is copied,
    inside the loop or around it. Inside it nothing is sorted and nothing leaves the device."""
    program = Program(target_of(DEEPER), eagle(eagle_drafter(DRAFTER), SMALL), COUPLINGS.checked(coupling))
    inputs = abstract_inputs(batch, DEEPER)
    state = jax.eval_shape(lambda inputs: programs.stack_scalars(loop.start(program, inputs)), inputs)
    running = inputs.replace(conditioning=None, active=None)
    advance = jax.jit(partial(programs.advance, program, None), donate_argnames="state")
    rounds = jax.ShapeDtypeStruct((), jnp.int32)
    hlo = advance.lower(running, state, rounds).compile(compiler_options=AS_USERS_COMPILE).as_text()
    aliases = re.search(r"input_output_alias=\{(.*?)\}, entry_computation_layout", hlo)
    assert len(re.findall(r"(?:may|must)-alias", aliases[1])) == len(jax.tree.leaves(state))
    check_caches(hlo.splitlines(), batch, SMALL.max_depth, 1)
    check_lines(loop_lines(hlo))
