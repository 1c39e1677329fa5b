"""The account of a compiled program: memory, copies, the work of a round by its parts, collectives.

A TPU's compiler estimates the cycles of every instruction but custom calls, asynchronous copies and what no fusion
holds; a GPU's program launches a kernel for nearly every instruction left in it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from eval.ahead.program_text import Computation, Instruction, ProgramText, read_program
from eval.profile import part_of
from lantern_jax.apps.measuring.data_sheets import GPU, Device

_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
)
# Instructions that hand an array on as it is, for tracing copies back to arguments and forward to results.
_HANDED_ON = {
    *("bitcast", "get-tuple-element", "tuple", "reshape", "slice", "optimization-barrier", "opt-barrier"),
    *(
        "copy",
        "copy-start",
        "copy-done",
        "slice-start",
        "slice-done",
        "async-start",
        "async-done",
        "async-update",
    ),
    *("transpose", "convert"),
}
# A fusion of nothing but these is a copy.
_MOVING = _HANDED_ON | {"parameter", "constant", "concatenate", "pad", "broadcast", "iota"}
# Instructions of a GPU's program that launch nothing.
_NO_KERNEL = {
    *(
        "parameter",
        "constant",
        "get-tuple-element",
        "tuple",
        "bitcast",
        "after-all",
        "opt-barrier",
        "partition-id",
    ),
    *("while", "call", "conditional", "optimization-barrier", "add-dependency", "replica-id", "domain"),
}
# Parts of a scope that say nothing: function calls, branches, layer numbers.
_CALLS = re.compile(
    r"^(jit\(.*\)|vmap\(.*\)|cond|branch_\d+_fun|body|while|closed_call|checkpoint|shard_map|remat)$"
)
_LAYER = re.compile(r"^(layer|level|block)s?(_\d+)?$")


@dataclass(frozen=True)
class Work:
    """The work of some instructions.

    Attributes:
        cycles: the TPU compiler's estimates.
        kernels: launches on a GPU.
        parts: cycles, or launches on a GPU, by part of a round: "draft", "score qkv", "verify", "commit".
        collectives: by kind, their number and the bytes of their results.
        loops: inner loops, whose bodies are counted once.
    """

    cycles: int = 0
    kernels: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)
    collectives: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    loops: int = 0


@dataclass(frozen=True)
class Account:
    """What a compiled program takes on each device.

    Attributes:
        arguments, temporaries, results: bytes; results that take the place of arguments are not counted.
        state: bytes of arguments that are donated to results.
        code: bytes of the program itself.
        copied: bytes of arguments and results that are copied outside the decoding loop, or in a program without one.
        round: the work of a round of the decoding loop; None for a program without one.
        call: the work outside that loop.
    """

    arguments: int
    temporaries: int
    results: int
    state: int
    code: int
    copied: int
    round: Work | None
    call: Work | None


def account_of(program: Any, device: Device, decodes: bool) -> Account:
    """Returns the account of a compiled program.

    Args:
        program: JAX's record of it (``jax.stages.Compiled``).
        decodes: whether its largest loop is the decoding loop.
    """
    used, text = program.memory_analysis(), read_program(program.as_text())
    loop = text.loop() if decodes else None
    return Account(
        arguments=used.argument_size_in_bytes,
        temporaries=used.temp_size_in_bytes,
        results=used.output_size_in_bytes - used.alias_size_in_bytes,
        state=used.alias_size_in_bytes,
        code=used.generated_code_size_in_bytes,
        copied=copied_bytes(text),
        round=None if loop is None else work_of(text, text.within(loop), device),
        call=work_of(text, outside(text, loop), device),
    )


def outside(text: ProgramText, loop: Instruction | None) -> Iterator[Instruction]:
    """Yields the instructions that a program runs outside its decoding loop."""
    main = {name: each for name, each in text.main.items() if loop is None or name != loop.name}
    return text.running(main)


def work_of(text: ProgramText, instructions: Iterable[Instruction], device: Device) -> Work:
    """Returns the work of instructions, given in the order in which they run."""
    cycles = kernels = loops = 0
    parts: Counter[str] = Counter()
    collectives: dict[str, Counter[str]] = {}
    ordered = list(instructions)
    for instruction, operation in zip(ordered, _operations(text, ordered), strict=True):
        loops += instruction.opcode == "while"
        for each in _collectives(text, instruction):
            kind = each.opcode.removesuffix("-start")
            collectives.setdefault(kind, Counter()).update(count=1, bytes=_moved(each))
        if device.platform == GPU:
            cost = launches(instruction)
            kernels += cost
        else:
            cost = instruction.cycles or 0
            cycles += cost
        if cost:
            parts[operation] += cost
    found = {kind: dict(counts) for kind, counts in sorted(collectives.items())}
    return Work(cycles, kernels, dict(parts.most_common()), found, loops)


def launches(instruction: Instruction) -> int:
    """Returns how many kernels a GPU launches for an instruction, copies included: none or one."""
    return int(not (instruction.opcode in _NO_KERNEL or instruction.opcode.endswith(("-done", "-update"))))


def copied_bytes(text: ProgramText) -> int:
    """Returns the bytes of arguments and results that a program copies outside its decoding loop.

    A copy counts if its source is an argument or the loop's output, or if it becomes a result or the loop's input,
    handed on unchanged in between. Moving an array to the small memory and back in the same layout is not a copy.
    """
    main = text.main
    users: dict[str, list[Instruction]] = {}
    for instruction in main.values():
        for operand in instruction.operands:
            users.setdefault(operand, []).append(instruction)

    def from_outside(instruction: Instruction, seen: set[str]) -> bool:
        if instruction.opcode in ("parameter", "while"):
            return True
        if instruction.name in seen or not _hands_on(text, instruction):
            return False
        seen.add(instruction.name)
        return any(from_outside(main[name], seen) for name in instruction.operands if name in main)

    def to_outside(instruction: Instruction, seen: set[str]) -> bool:
        if instruction.is_root or instruction.opcode == "while":
            return True
        if instruction.name in seen or not _hands_on(text, instruction):
            return False
        seen.add(instruction.name)
        return any(to_outside(user, seen) for user in users.get(instruction.name, ()))

    total = 0
    for instruction in main.values():
        if not _copies(text, main, instruction):
            continue
        sources = [main[name] for name in instruction.operands if name in main]
        if any(from_outside(source, set()) for source in sources) or to_outside(instruction, set()):
            made = instruction.arrays[0].bytes if instruction.opcode == "copy-start" else instruction.bytes
            # Putting a small array at the start of a cache does not copy the cache.
            total += min(made, sum(source.bytes for source in sources))
    return total


def _copies(text: ProgramText, main: Computation, instruction: Instruction) -> bool:
    if instruction.opcode in ("copy", "copy-start"):
        source = main.get(instruction.operands[0]) if instruction.operands else None
        before, after = (source.arrays if source else ())[:1], instruction.arrays[:1]
        moves = bool(before) and before[0].space != after[0].space and before[0].layout == after[0].layout
        return not moves
    if instruction.opcode in ("transpose", "convert"):
        return True
    if instruction.opcode != "fusion":
        return False
    inside = {each.opcode for name in instruction.called for each in text.computations[name].values()}
    return inside <= _MOVING and bool(
        inside & {"copy", "transpose", "convert", "slice", "concatenate", "pad"}
    )


def _hands_on(text: ProgramText, instruction: Instruction) -> bool:
    is_joined = instruction.opcode == "custom-call" and instruction.target == "ConcatBitcast"
    return instruction.opcode in _HANDED_ON or is_joined or _copies(text, text.main, instruction)


def _operations(text: ProgramText, instructions: list[Instruction]) -> list[str]:
    """Returns the operation of each instruction: its part of a round, and for the target's pass which piece of it.

    An instruction that lost its scope to the compiler takes the operation of the next one with a scope, which mostly
    reads it.
    """
    following, found = "other", []
    for instruction in reversed(instructions):
        scope = instruction.scope or _fused_scope(text, instruction)
        following = operation_of(scope) if scope else following
        found.append(following)
    return found[::-1]


def operation_of(scope: str) -> str:
    """Returns the part of a round that a scope belongs to; for the target's pass, also the module or the primitive."""
    part = part_of(scope)
    if part != "score":
        return part
    names = scope.split("/")
    inner = [name for name in names[names.index("score") + 1 :] if not _CALLS.match(name)]
    inner = [name for name in inner if not _LAYER.match(name)]
    # Modules stand between the model's method and the primitive; attention is a primitive of the layer itself.
    modules = [name for name in inner[1:-1] if name != "transformer" and "->" not in name]
    if modules:
        return f"score {modules[-1]}"
    contraction = [name for name in inner if "->" in name]
    in_layer = any(_LAYER.match(name) for name in names)
    last = contraction[-1] if contraction else inner[-1] if inner else ""
    return f"score {'attention ' if in_layer else ''}{last}".strip()


def _fused_scope(text: ProgramText, instruction: Instruction) -> str:
    """Returns the most common scope of a fusion's instructions, or ""."""
    if instruction.opcode != "fusion":
        return ""
    scopes = Counter(
        each.scope for name in instruction.called for each in text.computations[name].values() if each.scope
    )
    return scopes.most_common(1)[0][0] if scopes else ""


def _collectives(text: ProgramText, instruction: Instruction) -> list[Instruction]:
    """Returns the collectives in an instruction: itself, or those fused into it."""
    if instruction.opcode.removesuffix("-start") in _COLLECTIVES:
        return [instruction]
    if instruction.opcode != "fusion":
        return []
    inside = (each for name in instruction.called for each in text.computations[name].values())
    return [found for each in inside for found in _collectives(text, each)]


def _moved(collective: Instruction) -> int:
    """Returns the bytes of a collective's results; a start instruction lists its operands too."""
    sizes = [array.bytes for array in collective.arrays]
    if collective.opcode == "all-reduce-start" or not collective.opcode.endswith("-start") or len(sizes) < 2:
        return sum(sizes)
    return sizes[1]
