"""The optimized HLO text of a compiled program, read into computations of instructions."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_HEADER = re.compile(r"^(ENTRY )?%?([\w.<>-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.<>-]+) = (.*?) ([a-z][\w-]*)\((.*)$")
_ARRAY = re.compile(r"\b(?:pred|[a-z]+(\d+)\w*)\[([\d,]*)\](\{[^{}]*\})?")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.<>-]+)"
)


class Array(NamedTuple):
    """An array of a type.

    Attributes:
        shape: its element type and shape, such as "f32[2,3]".
        bytes: its size.
        in_memory: whether it is in memory. A TPU keeps others on the chip: the layout of those
            names a memory space, S(1).
    """

    shape: str
    bytes: int
    in_memory: bool


def arrays(text: str) -> Iterator[Array]:
    """The arrays in the text of a type, such as "(bf16[2,3]{1,0}, s32[])"."""
    for match in _ARRAY.finditer(text):
        bits, sides, layout = match.groups(default="")
        total_bits = int(bits or 8)
        for side in sides.split(","):
            total_bits *= int(side or 1)  # a scalar has no sides
        shape = match[0].removesuffix(layout)
        size = math.ceil(total_bits / 8)
        on_chip = re.search(r"S\([1-9]", layout)
        yield Array(shape, size, in_memory=on_chip is None)


def array_bytes(text: str, on_chip: bool = True) -> int:
    """Bytes of all arrays in the text of a type; without `on_chip` only of those that are in
    memory."""
    total = 0
    for array in arrays(text):
        if on_chip or array.in_memory:
            total += array.bytes
    return total


class Instruction(NamedTuple):
    """One line of a computation.

    Attributes:
        name: of the instruction.
        type: the text of the result's type.
        opcode: the operation.
        operands: the names of the instructions that it reads.
        rest: all text after "opcode(".
        is_root: whether it gives the computation's result.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    rest: str
    is_root: bool

    @property
    def called(self) -> list[str]:
        """The computations that it calls."""
        names = _CALLED.findall(self.rest)
        branches = re.search(r"branch_computations=\{([^}]*)\}", self.rest)
        if branches:
            names += re.findall(r"%?([\w.<>-]+)", branches[1])
        return names


Computation = dict[str, Instruction]  # by name


class Module(NamedTuple):
    """All computations of a program, by name, and the name of the one that runs first."""

    computations: dict[str, Computation]
    entry: str


def parse(text: str) -> Module:
    """Reads the text of a program."""
    computations: dict[str, Computation] = {}
    entry = ""
    computation: Computation = {}
    without_comments = re.sub(r"/\*.*?\*/", "", text)
    for line in without_comments.splitlines():
        header = _HEADER.match(line)
        if header:
            is_entry, name = header.groups()
            computation = {}
            computations[name] = computation
            if is_entry:
                entry = name
            continue
        instruction = _parse_instruction(line)
        if instruction:
            computation[instruction.name] = instruction
    return Module(computations, entry)


def _parse_instruction(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if not match:
        return None
    root, name, type_, opcode, rest = match.groups()
    return Instruction(name, type_, opcode, _operands(rest), rest, bool(root))


def _operands(rest: str) -> tuple[str, ...]:
    """The names of the operands in the text after "opcode("."""
    text, _, _ = rest.partition(")")
    names = re.findall(r"%([\w.<>-]+)", text)
    if not names:  # some versions write them without percent signs, after their types
        names = re.findall(r"(\S+)(?:, |$)", text)
    return tuple(names)


def root_of(computation: Computation) -> Instruction:
    """The instruction that gives a computation's result."""
    return next(instruction for instruction in computation.values() if instruction.is_root)


def parameter_of(computation: Computation, index: int) -> str:
    """The name of a parameter of a computation."""
    for instruction in computation.values():
        is_parameter = instruction.opcode == "parameter"
        if is_parameter and instruction.operands == (f"{index}",):
            return instruction.name
    raise AssertionError(f"HLO text without parameter {index}")


def constant(instruction: Instruction | None) -> int | None:
    """The whole number of a constant instruction; None for other instructions."""
    if instruction is None or instruction.opcode != "constant":
        return None
    number = re.match(r"(-?\d+)\)", instruction.rest)
    if number is None:
        return None
    return int(number[1])


def first_group(pattern: str, text: str) -> str:
    """The first group of a pattern that must occur."""
    match = re.search(pattern, text)
    assert match, f"HLO text without {pattern!r}: {text[:80]!r}"
    return match[1]
