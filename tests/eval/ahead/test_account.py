"""The account of recorded programs: every number is counted by hand from ``programs``."""

from types import SimpleNamespace

import pytest

from eval.ahead import account, compiling
from eval.ahead.program_text import arrays_of, read_program
from eval.profile import PARTS
from lantern_jax.apps.measuring.data_sheets import DEVICES
from tests.eval.ahead import programs

V5E, H100 = DEVICES["v5e"], DEVICES["h100"]


def account_of(text: str, device):
    sizes = {"argument_size_in_bytes": 9, "temp_size_in_bytes": 8, "generated_code_size_in_bytes": 7}
    sizes |= {"output_size_in_bytes": 6, "alias_size_in_bytes": 5}
    program = SimpleNamespace(as_text=lambda: text, memory_analysis=lambda: SimpleNamespace(**sizes))
    return account.account_of(program, device, True)


def test_shapes_are_read_with_layouts_and_memories():
    assert [each.bytes for each in arrays_of("(bf16[2,3]{1,0:T(8,128)(2,1)S(1)}, pred[7], s32[])")] == [
        12,
        7,
        4,
    ]
    lies = arrays_of("bf16[2,3]{1,0:T(8,128)(2,1)S(1)}")[0]
    assert (lies.layout, lies.space) == (arrays_of("bf16[2,3]{1,0:T(8,128)(2,1)}")[0].layout, 1)


def test_memory_figures_are_the_compilers():
    made = account_of(programs.TPU, V5E)
    assert (made.arguments, made.temporaries, made.state, made.code, made.results) == (9, 8, 5, 7, 1)


def test_cycles_of_a_round_are_those_of_the_loop_with_inner_loops_once():
    made = account_of(programs.TPU, V5E)
    assert made.round.cycles == 500 + 70 + 30 + 5 and made.round.loops == 1
    assert made.call.cycles == 1020
    assert made.round.parts == {"score qkv": 500, "score out": 70, "draft": 30, "commit": 5}


def test_copies_of_arguments_and_results_count_and_moves_do_not():
    # The kernel into another layout, the cache before the loop and after it; the scale is only moved.
    assert account.copied_bytes(read_program(programs.TPU)) == 8 * 128 * 2 + 2 * 2 * 64 * 2
    assert account.copied_bytes(read_program(programs.GPU)) == 0


def test_collectives_count_by_kind_and_bytes():
    assert account_of(programs.TPU, V5E).round.collectives == {"all-reduce": {"count": 1, "bytes": 2048}}
    assert account_of(programs.GPU, H100).round.collectives == {"all-gather": {"count": 1, "bytes": 256}}


def test_kernels_of_a_round_are_what_a_gpu_launches():
    work = account_of(programs.GPU, H100).round
    assert work.kernels == 6 and work.cycles == 0
    assert work.parts["score qkv"] == 1 and work.parts["commit"] >= 2
    assert sum(work.parts.values()) == 6


@pytest.mark.parametrize(
    ("scope", "operation"),
    [
        ("jit(advance)/while/body/commit/cond/branch_0_fun/dynamic_update_slice", "commit"),
        ("jit(advance)/while/body/score/LlamaGen.extend/transformer/layer_3/qkv/dot_general", "score qkv"),
        (
            "jit(advance)/while/body/score/LlamaGen.extend/transformer/layer_3/cond/branch_0_fun/reduce_sum",
            "score attention reduce_sum",
        ),
        (
            "jit(advance)/while/body/score/X.extend/transformer/layer_3/cond/branch_0_fun/...ne,...se->...ns/dot_general",
            "score attention ...ne,...se->...ns",
        ),
        ("jit(advance)/while/body/score/slice", "score slice"),
        ("jit(advance)/while/body/score", "score"),
        ("", "other"),
    ],
)
def test_an_operation_is_named_by_its_module_or_primitive(scope, operation):
    assert account.operation_of(scope) == operation
    assert operation.split()[0] in (*PARTS, "other")


@pytest.mark.parametrize(
    ("message", "needed", "available"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (22.14G) "
            "exceeds available HBM (15.75G).",
            22.14,
            15.75,
        ),
        (
            "XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 20.5G of 15.75G hbm.",
            20.5,
            15.75,
        ),
        ("INTERNAL: Mosaic failed to compile TPU kernel", 0, 0),
    ],
)
def test_the_figures_of_a_refusal_are_read(message, needed, available):
    assert compiling.refused(message) == (int(needed * 2**30), int(available * 2**30))
