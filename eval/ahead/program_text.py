"""Reads the text of a compiled program: its computations, their instructions, and what these move.

The text is what XLA's compilers for TPUs and GPUs write (``Compiled.as_text``), scheduled and fused.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_HEAD = re.compile(r"^(ENTRY )?%?([\w.-]+) \(")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = ")
_NAME = re.compile(r"%([\w.-]+)")
_CALLED = re.compile(r"(?:calls|to_apply|body|branch_computations|\w+_computation)=(\{[^}]*\}|%[\w.-]+)")
_SCOPE = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_BITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Array:
    """An array of a program.

    Attributes:
        bytes: bytes of its values; tiles may take more.
        layout: its order and tiles, without the memory it lies in.
        space: that memory, 0 for the large one.
    """

    bytes: int
    layout: str
    space: int


@dataclass(frozen=True)
class Instruction:
    """An instruction of a computation.

    Attributes:
        name, opcode: as written.
        shape: its result's shape, as written.
        operands: names of instructions of the same computation.
        called: the computations that it runs; for a loop only its body.
        scope: where in the traced functions it comes from, or "".
        target: a custom call's target, else "".
        cycles: the compiler's estimate, or None.
        is_root: whether its result is the computation's.
        rest: the line after its operands.
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    scope: str
    target: str
    cycles: int | None
    is_root: bool
    rest: str = field(repr=False)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of its result."""
        return arrays_of(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of its result."""
        return sum(array.bytes for array in self.arrays)


Computation = Mapping[str, Instruction]


@dataclass(frozen=True)
class ProgramText:
    """A compiled program.

    Attributes:
        computations: by name, their instructions in the order in which they run.
        entry: the name of the one that runs first.
    """

    computations: Mapping[str, Computation]
    entry: str

    @property
    def main(self) -> Computation:
        """The computation that runs first."""
        return self.computations[self.entry]

    def loop(self) -> Instruction | None:
        """Returns the decoding loop: the largest ``while`` in the computation that runs first, or None."""
        loops = [each for each in self.main.values() if each.opcode == "while"]
        return max(loops, key=lambda each: sum(1 for _ in self.within(each)), default=None)

    def within(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yields the instructions that an instruction runs, without fused ones; an inner loop's body comes once."""
        for name in instruction.called:
            yield from self.running(self.computations[name])

    def running(self, computation: Computation) -> Iterator[Instruction]:
        """Yields the instructions of a computation and, after each one that runs others, those."""
        for instruction in computation.values():
            yield instruction
            if instruction.opcode in ("while", "call", "conditional", "async-start"):
                yield from self.within(instruction)


def read_program(text: str) -> ProgramText:
    """Reads the text of a compiled program."""
    computations: dict[str, dict[str, Instruction]] = {}
    current: dict[str, Instruction] = {}
    entry = ""
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head is not None and line.endswith("{"):
            current = computations[head[2]] = {}
            entry = head[2] if head[1] else entry
        elif found := _INSTRUCTION.match(line):
            instruction = _instruction(found[2], bool(found[1]), line[found.end() :])
            current[instruction.name] = instruction
    return ProgramText(computations, entry)


def arrays_of(shape: str) -> tuple[Array, ...]:
    """Returns the arrays of a shape as written: "f32[2,3]{1,0:T(8,128)S(1)}", or a tuple of such shapes."""
    found = []
    for kind, sizes, layout in _ARRAY.findall(shape):
        bits = _BITS.search(kind)
        width = 8 if kind == "pred" else int(bits[0]) if bits else 0
        count = math.prod(int(size) for size in sizes.split(",") if size)
        space = _SPACE.search(layout)
        order = "" if not layout else _SPACE.sub("", layout)
        found.append(Array(count * width // 8, order, int(space[1]) if space else 0))
    return tuple(found)


def _instruction(name: str, is_root: bool, line: str) -> Instruction:
    shape, rest = _split(line)
    opcode, _, rest = rest.strip().partition("(")
    operands, rest = _split("(" + rest)
    called = [part for found in _CALLED.findall(rest) for part in _NAME.findall(found)]
    scope, target, cycles = _SCOPE.search(rest), _TARGET.search(rest), _CYCLES.search(rest)
    return Instruction(
        name,
        opcode,
        shape,
        tuple(_NAME.findall(operands)),
        tuple(called),
        scope[1] if scope else "",
        target[1] if target else "",
        int(cycles[1]) if cycles else None,
        is_root,
        rest,
    )


def _split(line: str) -> tuple[str, str]:
    """Splits a line after its first term: a word, or text in parentheses."""
    if not line.startswith("("):
        first, _, rest = line.partition(" ")
        return first, rest
    depth = 0
    for place, mark in enumerate(line):
        depth += (mark == "(") - (mark == ")")
        if not depth:
            return line[: place + 1], line[place + 1 :]
    return line, ""
