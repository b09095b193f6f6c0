"""The collectives and the memory traffic of a compiled program, counted in its optimized HLO text.

XLA's own cost analysis counts the body of a loop once, and leaves out collectives. Here every
instruction counts as
often as it runs: in the body of a loop, once per iteration; in a called computation, once per call.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Kind of collective -> the bytes that one of n devices receives per byte of the result, by the
# algorithm that moves the least.
WIRE = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: n - 1,
    "collective-permute": lambda n: 1,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-broadcast": lambda n: 1,
}

_HEADER = re.compile(r"^(ENTRY )?%?([\w.<>-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.<>-]+) = (.*?) ([a-z][\w-]*)\((.*)$")
_ARRAY = re.compile(r"\b(?:pred|[a-z]+(\d+)\w*)\[([\d,]*)\](\{[^{}]*\})?")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.<>-]+)"
)
# Instructions without traffic of their own: views, and calls, whose computations are counted
# separately.
_FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast while conditional call after-all partition-id replica-id iota "
    "async-start async-update opt-barrier".split()
)
# of libtpu
_FREE_CALLS = re.compile(
    r'custom_call_target="(AllocateBuffer|ConcatBitcast|AssumeGatherIndicesInBound)"'
)
_SLICES = {"dynamic-slice", "slice", "gather"}


class Instruction(NamedTuple):
    """One line of a computation: `type` is the text of the result's type, `rest` all text after
    "opcode("."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    rest: str
    is_root: bool

    @property
    def called(self) -> list[str]:
        """The computations that it calls."""
        branches = re.search(r"branch_computations=\{([^}]*)\}", self.rest)
        names = re.findall(r"%?([\w.<>-]+)", branches[1]) if branches else []
        return [*_CALLED.findall(self.rest), *names]


Computation = dict[str, Instruction]  # by name


@dataclasses.dataclass
class Collectives:
    """All collectives of one kind in one call of a program.

    Attributes:
        count: how many run.
        bytes: the size of their results on one device.
        wire_bytes: the least that one device must receive for them.
        waiting_bytes: the part of `wire_bytes` during which nothing else runs.
    """

    count: int = 0
    bytes: float = 0
    wire_bytes: float = 0
    waiting_bytes: float = 0


class Moved(NamedTuple):
    """What one instruction moves to and from memory in one call of a program.

    Attributes:
        bytes: over all its runs.
        runs: how often it runs.
        name: of the instruction.
        results: the arrays that it gives, such as "bf16[16,512] f32[512]*", a star for one that
            stays on the chip.
        source: the JAX operation that it belongs to, after "backward" if that is a gradient's; ""
            if it is not said.
    """

    bytes: float
    runs: float
    name: str
    results: str
    source: str


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of one call of a program on one device.

    Attributes:
        collectives: by kind, without kinds that do not occur.
        traffic: bytes to and from memory, without arrays that stay on the chip. An operand that is
            only read in part counts in full, unless the part is a slice.
        unknown_loops: how many loops have an unknown number of iterations. They count as one
            iteration.
        moved: the traffic of each instruction that has any, the largest first.
    """

    collectives: dict[str, Collectives]
    traffic: float
    unknown_loops: int
    moved: tuple[Moved, ...] = ()


def array_bytes(text: str, on_chip: bool = True) -> int:
    """Bytes of all arrays in the text of a type, such as "(bf16[2,3]{1,0}, s32[])"; without
    `on_chip` only of those that a TPU does not keep on the chip. The layout of those names a memory
    space: S(1)."""
    return sum(size for size, in_memory in _arrays(text) if on_chip or in_memory)


def _arrays(text: str) -> Iterator[tuple[int, bool]]:
    """The size in bytes of each array, and whether it is in memory, not on the chip."""
    for bits, dims, layout in _ARRAY.findall(text):
        elements = math.prod(int(dim) for dim in dims.split(",") if dim)
        yield math.ceil(elements * int(bits or 8) / 8), not re.search(r"S\([1-9]", layout)


class Program:
    """A program of XLA, from its text."""

    def __init__(self, text: str, devices: int):
        self.devices, self.entry, self.unknown_loops = devices, "", 0
        self.computations: dict[str, Computation] = {}
        computation: Computation = {}
        for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
            if header := _HEADER.match(line):
                computation = self.computations[header[2]] = {}
                self.entry = header[2] if header[1] else self.entry
            elif match := _INSTRUCTION.match(line):
                root, name, kind, opcode, rest = match.groups()
                operands = rest.partition(")")[0]
                # Some versions write operands without percent signs, after their types.
                names = re.findall(r"%([\w.<>-]+)", operands) or [
                    word.split()[-1] for word in operands.split(", ") if word
                ]
                computation[name] = Instruction(name, kind, opcode, tuple(names), rest, bool(root))

    def costs(self) -> Costs:
        """Counts one call of the program."""
        single: dict[object, tuple[str, float, float, int, bool]] = {}
        moved: list[Moved] = []
        for name, (times, fused) in self._runs().items():
            computation = self.computations[name]
            for instruction in computation.values():
                if not fused and (size := times * self._traffic(computation, instruction)):
                    moved.append(_moved(size, times, instruction))
                kind = instruction.opcode.removesuffix("-start")
                if kind in WIRE:
                    # libtpu splits a collective into a start, steps inside other fusions and an
                    # end, all with one channel. The steps may be inside a loop, so the part that
                    # runs least often counts.
                    part = fused and not name.startswith("all-reduce-scatter")
                    channel = re.search(r"channel_id=\d+", instruction.rest) if part else None
                    key: object = channel[0] if channel else (name, instruction.name)
                    size, kind = self._result(name, instruction, kind)
                    if key not in single or times < single[key][1]:
                        overlaps = (
                            instruction.opcode.endswith("-start") or "chain_id=" in instruction.rest
                        )
                        group, overlaps = (
                            self._group(instruction.rest),
                            overlaps or name.startswith("async"),
                        )
                        single[key] = kind, times, size, group, overlaps
        collected: dict[str, Collectives] = collections.defaultdict(Collectives)
        for kind, times, size, group, overlaps in single.values():
            total, wire = collected[kind], times * size * WIRE[kind](group)
            total.count += round(times)
            total.bytes += times * size
            total.wire_bytes += wire
            total.waiting_bytes += 0 if overlaps else wire
        traffic = sum(one.bytes for one in moved)
        largest = tuple(sorted(moved, key=lambda one: -one.bytes))
        return Costs(dict(sorted(collected.items())), traffic, self.unknown_loops, largest)

    def _runs(self) -> dict[str, tuple[float, bool]]:
        """How often each computation runs, and whether only inside fusions or as the operator of a
        reduction."""
        runs: dict[str, tuple[float, bool]] = {}

        def visit(name: str, times: float, fused: bool) -> None:
            """Counts a computation that is called so many times, and all computations that it
            calls."""
            before, always = runs.get(name, (0.0, True))
            runs[name] = (before + times, always and fused)
            for instruction in self.computations[name].values():
                if instruction.opcode in ("async-update", "async-done"):
                    continue  # they repeat the name that async-start calls
                turns = (
                    self._turns(self.computations[name], instruction)
                    if instruction.opcode == "while"
                    else 1
                )
                inside = fused or instruction.opcode not in (
                    "while",
                    "conditional",
                    "call",
                    "async-start",
                )
                for called in instruction.called:
                    if called in self.computations:
                        visit(called, times * turns, inside)

        visit(self.entry, 1.0, False)
        return runs

    def _turns(self, computation: Computation, loop: Instruction) -> int:
        """The iterations of a loop: as XLA states them, or from a condition that compares a counter
        of step 1."""
        if stated := re.search(r'known_trip_count"?:\s*\{\s*"?n"?:\s*"?(\d+)', loop.rest):
            return int(stated[1])
        condition = self.computations[_first(r"condition=%?([\w.<>-]+)", loop.rest)]
        compare = _root(condition)
        # the comparison is in a computation of its own, with the same operands
        if compare.opcode == "fusion":
            compare = _root(self.computations[compare.called[0]])._replace(
                operands=compare.operands
            )
        values = [condition.get(name) for name in compare.operands]
        counters = [
            instruction
            for instruction in values
            if instruction and instruction.opcode == "get-tuple-element"
        ]
        known = [limit for limit in map(_constant, values) if limit is not None]
        if len(known) != 1 or len(counters) != 1 or not re.search(r"direction=L[TE]", compare.rest):
            self.unknown_loops += 1
            return 1
        first = self._initial(computation, loop, int(_first(r"index=(\d+)", counters[0].rest)))
        return known[0] - first + ("direction=LE" in compare.rest)

    def _initial(self, computation: Computation, loop: Instruction, index: int) -> int:
        """The first value of a loop's counter; 0 if it is not a constant before the loop."""
        carried = computation.get(loop.operands[0])
        value = (
            computation.get(carried.operands[index])
            if carried and carried.opcode == "tuple"
            else None
        )
        while value and value.opcode in ("copy", "bitcast"):
            value = computation.get(value.operands[0])
        return _constant(value) or 0

    def _result(self, name: str, instruction: Instruction, kind: str) -> tuple[int, str]:
        if name.startswith("all-reduce-scatter"):
            # libtpu writes a reduce-scatter as a fusion of an all-reduce and the slice that this
            # device keeps.
            return array_bytes(_root(self.computations[name]).type), "reduce-scatter"
        if instruction.opcode.endswith("-start") and (
            kind != "all-reduce" or instruction.type.startswith("((")
        ):
            # (operands, results, and on some machines context); as many results as operands
            sizes, count = (
                [size for size, _ in _arrays(instruction.type)],
                len(instruction.operands),
            )
            return sum(sizes[count : 2 * count]), kind
        return array_bytes(instruction.type), kind

    def _group(self, rest: str) -> int:
        """The number of devices in one collective, in any of XLA's notations."""
        if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", rest):
            return listed[1].count(",") + 1
        if grid := re.search(r"replica_groups=\[\d+,(\d+)\]", rest):
            return int(grid[1])
        if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", rest):
            sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
            return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", mesh[2]))
        return self.devices

    def _traffic(self, computation: Computation, instruction: Instruction) -> float:
        free = instruction.opcode in _FREE or _FREE_CALLS.search(instruction.rest)
        if free or instruction.opcode.endswith("-done"):
            return 0.0
        # (source, destination, context), one of which may be on the chip
        if instruction.opcode.endswith("-start"):
            ends = list(_arrays(instruction.type))[:2]
            return float(min(size for size, _ in ends) * sum(in_memory for _, in_memory in ends))
        operands = [computation.get(name) for name in instruction.operands]
        if instruction.opcode == "fusion":
            fused = self.computations[instruction.called[0]]
            return self._read(fused, operands) + _written(fused, instruction.type)
        if instruction.opcode == "dynamic-update-slice" and (update := operands[1]):
            return 2.0 * array_bytes(update.type, on_chip=False)
        if instruction.opcode in _SLICES:
            return 2.0 * array_bytes(instruction.type, on_chip=False)
        read = sum(array_bytes(operand.type, on_chip=False) for operand in operands if operand)
        return float(read + array_bytes(instruction.type, on_chip=False))

    def _read(self, fused: Computation, operands: Sequence[Instruction | None]) -> float:
        """The bytes that a fusion reads: only slices of a sliced operand, nothing of one that it
        updates in place."""
        total = 0.0
        for index, operand in enumerate(operands):
            size = array_bytes(operand.type, on_chip=False) if operand else 0
            total += min(size, self._part_read(fused, index))
        return total

    def _part_read(self, fused: Computation, index: int) -> float:
        """The bytes of a fusion's parameter that slices read; infinite if an instruction reads all
        of it."""
        [parameter] = [
            one
            for one in fused.values()
            if one.opcode == "parameter" and one.operands == (str(index),)
        ]
        names, total = {parameter.name}, 0.0
        for instruction in fused.values():
            uses = [number for number, name in enumerate(instruction.operands) if name in names]
            if not uses:
                continue
            if instruction.opcode == "bitcast":
                names.add(instruction.name)
            elif instruction.opcode in _SLICES and uses == [0]:
                total += array_bytes(instruction.type)
            elif instruction.opcode == "fusion":  # a fusion inside a fusion
                inner = self.computations[instruction.called[0]]
                total += sum(self._part_read(inner, number) for number in uses)
            elif instruction.opcode != "dynamic-update-slice" or uses != [0]:
                return math.inf
        return total


def _moved(size: float, runs: float, instruction: Instruction) -> Moved:
    arrays = _ARRAY.finditer(instruction.type)
    results = " ".join(
        array[0].partition("{")[0] + "*" * ("S(" in (array[3] or "")) for array in arrays
    )
    path = re.search(r'op_name="([^"]*)"', instruction.rest)
    source = (
        "backward " * ("transpose(" in path[1]) + "/".join(path[1].split("/")[-2:]) if path else ""
    )
    return Moved(size, runs, instruction.name, results, source)


def _written(fused: Computation, result: str) -> float:
    """The bytes that a fusion writes, whose result has this type: only the new slice of an array
    updated in place."""
    root = _root(fused)
    parts = [fused[name] for name in root.operands] if root.opcode == "tuple" else [root]
    sizes = [size if in_memory else 0 for size, in_memory in _arrays(result)]
    if len(parts) != len(sizes):
        return float(sum(sizes))
    total = 0.0
    for part, size in zip(parts, sizes, strict=True):
        while part.opcode in ("bitcast", "copy"):
            part = fused[part.operands[0]]
        in_place = part.opcode == "dynamic-update-slice"
        total += min(size, array_bytes(fused[part.operands[1]].type)) if in_place else size
    return total


def _root(computation: Computation) -> Instruction:
    """The instruction that gives a computation's result."""
    return next(instruction for instruction in computation.values() if instruction.is_root)


def _first(pattern: str, text: str) -> str:
    """The first group of a pattern that must occur."""
    match = re.search(pattern, text)
    assert match, f"HLO text without {pattern!r}: {text[:80]!r}"
    return match[1]


def _constant(instruction: Instruction | None) -> int | None:
    number = (
        re.match(r"(-?\d+)\)", instruction.rest)
        if instruction and instruction.opcode == "constant"
        else None
    )
    return int(number[1]) if number else None
