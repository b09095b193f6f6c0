"""The collectives and the memory traffic of a compiled program, counted in its optimized HLO text.

XLA's own cost analysis counts the body of a loop once, and leaves out collectives. Here every
instruction counts as
often as it runs: in the body of a loop, once per iteration; in a called computation, once per call.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
# Instructions whose computations move bytes themselves, as fusions do not.
_CALLS = {"while", "conditional", "call", "async-start"}
_REDUCE_SCATTER = "all-reduce-scatter"  # what the names of libtpu's fusions begin with


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
        names = _CALLED.findall(self.rest)
        branches = re.search(r"branch_computations=\{([^}]*)\}", self.rest)
        if branches:
            names += re.findall(r"%?([\w.<>-]+)", branches[1])
        return names


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
    total = 0
    for array in _arrays(text):
        if on_chip or array.in_memory:
            total += array.bytes
    return total


class _Array(NamedTuple):
    """An array of a type: its size, and whether it is in memory, not on the chip."""

    bytes: int
    in_memory: bool


def _arrays(text: str) -> Iterator[_Array]:
    """The arrays in the text of a type."""
    for bits, dims, layout in _ARRAY.findall(text):
        sides = [int(dim) for dim in dims.split(",") if dim]
        bits_of_all = math.prod(sides) * int(bits or 8)
        on_chip = re.search(r"S\([1-9]", layout)
        yield _Array(math.ceil(bits_of_all / 8), not on_chip)


class _Run(NamedTuple):
    """How often a computation runs, and whether only inside fusions or as the operator of a
    reduction."""

    times: float
    fused: bool


class _Transfer(NamedTuple):
    """A collective of a program.

    Attributes:
        kind: key of WIRE.
        times: how often it runs.
        size: bytes of its result.
        group: the devices in it.
        overlaps: whether something else runs meanwhile.
    """

    kind: str
    times: float
    size: float
    group: int
    overlaps: bool


class Program:
    """A program of XLA, from its text."""

    def __init__(self, text: str, devices: int):
        self.devices = devices
        self.entry = ""
        self.unknown_loops = 0
        self.computations: dict[str, Computation] = {}
        computation: Computation = {}
        without_comments = re.sub(r"/\*.*?\*/", "", text)
        for line in without_comments.splitlines():
            header = _HEADER.match(line)
            if header:
                is_entry, name = header.groups()
                computation = {}
                self.computations[name] = computation
                if is_entry:
                    self.entry = name
                continue
            match = _INSTRUCTION.match(line)
            if match:
                root, name, kind, opcode, rest = match.groups()
                operands = _operands(rest)
                computation[name] = Instruction(name, kind, opcode, operands, rest, bool(root))

    def costs(self) -> Costs:
        """Counts one call of the program."""
        runs = self._runs()
        moved = self._moved(runs)
        collected: dict[str, Collectives] = collections.defaultdict(Collectives)
        for transfer in self._transfers(runs):
            total = collected[transfer.kind]
            result_bytes = transfer.times * transfer.size
            wire_bytes = result_bytes * WIRE[transfer.kind](transfer.group)
            total.count += round(transfer.times)
            total.bytes += result_bytes
            total.wire_bytes += wire_bytes
            if not transfer.overlaps:
                total.waiting_bytes += wire_bytes
        traffic = sum(entry.bytes for entry in moved)
        moved.sort(key=lambda entry: -entry.bytes)
        return Costs(dict(sorted(collected.items())), traffic, self.unknown_loops, tuple(moved))

    def _moved(self, runs: Mapping[str, _Run]) -> list[Moved]:
        """The traffic of each instruction that has any."""
        moved = []
        for name, run in runs.items():
            if run.fused:
                continue
            computation = self.computations[name]
            for instruction in computation.values():
                size = run.times * self._traffic(computation, instruction)
                if size:
                    moved.append(_describe_moved(size, run.times, instruction))
        return moved

    def _transfers(self, runs: Mapping[str, _Run]) -> Iterable[_Transfer]:
        """All collectives, each once.

        libtpu splits a collective into a start, steps inside other fusions and an end, all with one
        channel. The steps may be inside a loop, so the part that runs least often counts.
        """
        transfers: dict[object, _Transfer] = {}
        for name, run in runs.items():
            for instruction in self.computations[name].values():
                kind = instruction.opcode.removesuffix("-start")
                if kind not in WIRE:
                    continue
                is_part = run.fused and not name.startswith(_REDUCE_SCATTER)
                channel = re.search(r"channel_id=\d+", instruction.rest) if is_part else None
                key: object = channel[0] if channel else (name, instruction.name)
                if key in transfers and transfers[key].times <= run.times:
                    continue
                size, kind = self._result(name, instruction, kind)
                overlaps = (
                    instruction.opcode.endswith("-start")
                    or "chain_id=" in instruction.rest
                    or name.startswith("async")
                )
                group = self._group(instruction.rest)
                transfers[key] = _Transfer(kind, run.times, size, group, overlaps)
        return transfers.values()

    def _runs(self) -> dict[str, _Run]:
        """How often each computation runs."""
        runs: dict[str, _Run] = {}

        def visit(name: str, times: float, fused: bool) -> None:
            """Counts a computation that is called so many times, and all computations that it
            calls."""
            before = runs.get(name, _Run(0.0, True))
            runs[name] = _Run(before.times + times, before.fused and fused)
            computation = self.computations[name]
            for instruction in computation.values():
                if instruction.opcode in ("async-update", "async-done"):
                    continue  # they repeat the name that async-start calls
                turns = 1
                if instruction.opcode == "while":
                    turns = self._turns(computation, instruction)
                is_fused = fused or instruction.opcode not in _CALLS
                for called in instruction.called:
                    if called in self.computations:
                        visit(called, times * turns, is_fused)

        visit(self.entry, 1.0, False)
        return runs

    def _turns(self, computation: Computation, loop: Instruction) -> int:
        """The iterations of a loop: as XLA states them, or from a condition that compares a counter
        of step 1."""
        stated = re.search(r'known_trip_count"?:\s*\{\s*"?n"?:\s*"?(\d+)', loop.rest)
        if stated:
            return int(stated[1])
        condition = self.computations[_first(r"condition=%?([\w.<>-]+)", loop.rest)]
        compare = _root(condition)
        # the comparison is in a computation of its own, with the same operands
        if compare.opcode == "fusion":
            inner = _root(self.computations[compare.called[0]])
            compare = inner._replace(operands=compare.operands)
        counters = []
        limits = []
        for name in compare.operands:
            value = condition.get(name)
            limit = _constant(value)
            if limit is not None:
                limits.append(limit)
            if value and value.opcode == "get-tuple-element":
                counters.append(value)
        direction = re.search(r"direction=(LT|LE)", compare.rest)
        if len(limits) != 1 or len(counters) != 1 or not direction:
            self.unknown_loops += 1
            return 1
        index = int(_first(r"index=(\d+)", counters[0].rest))
        turns = limits[0] - self._initial(computation, loop, index)
        return turns + 1 if direction[1] == "LE" else turns

    def _initial(self, computation: Computation, loop: Instruction, index: int) -> int:
        """The first value of a loop's counter; 0 if it is not a constant before the loop."""
        carried = computation.get(loop.operands[0])
        if carried is None or carried.opcode != "tuple":
            return 0
        value = computation.get(carried.operands[index])
        while value and value.opcode in ("copy", "bitcast"):
            value = computation.get(value.operands[0])
        return _constant(value) or 0

    def _result(self, name: str, instruction: Instruction, kind: str) -> tuple[int, str]:
        """The bytes and the kind of a collective in a computation of this name."""
        if name.startswith(_REDUCE_SCATTER):
            # libtpu writes a reduce-scatter as a fusion of an all-reduce and the slice that this
            # device keeps.
            return array_bytes(_root(self.computations[name]).type), "reduce-scatter"
        is_start = instruction.opcode.endswith("-start")
        has_operands = kind != "all-reduce" or instruction.type.startswith("((")
        if not is_start or not has_operands:
            return array_bytes(instruction.type), kind
        # (operands, results, and on some machines context); as many results as operands
        sizes = [array.bytes for array in _arrays(instruction.type)]
        count = len(instruction.operands)
        return sum(sizes[count : 2 * count]), kind

    def _group(self, rest: str) -> int:
        """The number of devices in one collective, in any of XLA's notations."""
        members = re.search(r"replica_groups=\{\{([\d,]+)\}", rest)
        if members:
            return members[1].count(",") + 1
        grid = re.search(r"replica_groups=\[\d+,(\d+)\]", rest)
        if grid:
            return int(grid[1])
        mesh = re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", rest)
        if mesh:
            sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
            axes = re.findall(r"'(\w+)'", mesh[2])
            return math.prod(int(sizes[axis]) for axis in axes)
        return self.devices

    def _traffic(self, computation: Computation, instruction: Instruction) -> float:
        """The bytes that an instruction moves to and from memory when it runs once."""
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith("-done") or _FREE_CALLS.search(instruction.rest):
            return 0.0
        # (source, destination, context), one of which may be on the chip
        if opcode.endswith("-start"):
            ends = list(_arrays(instruction.type))[:2]
            smaller = min(end.bytes for end in ends)
            in_memory = [end for end in ends if end.in_memory]
            return float(smaller * len(in_memory))
        operands = [computation.get(name) for name in instruction.operands]
        if opcode == "fusion":
            fused = self.computations[instruction.called[0]]
            return self._read(fused, operands) + _written(fused, instruction.type)
        written = array_bytes(instruction.type, on_chip=False)
        if opcode == "dynamic-update-slice" and operands[1]:
            return 2.0 * array_bytes(operands[1].type, on_chip=False)
        if opcode in _SLICES:
            return 2.0 * written
        read = 0
        for operand in operands:
            if operand:
                read += array_bytes(operand.type, on_chip=False)
        return float(read + written)

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
        names = {_parameter(fused, index)}
        total = 0.0
        for instruction in fused.values():
            uses = [number for number, name in enumerate(instruction.operands) if name in names]
            if not uses:
                continue
            is_of_first = uses == [0]
            if instruction.opcode == "bitcast":
                names.add(instruction.name)
            elif instruction.opcode in _SLICES and is_of_first:
                total += array_bytes(instruction.type)
            elif instruction.opcode == "fusion":  # a fusion inside a fusion
                inner = self.computations[instruction.called[0]]
                total += sum(self._part_read(inner, number) for number in uses)
            elif instruction.opcode != "dynamic-update-slice" or not is_of_first:
                return math.inf
        return total


def _operands(rest: str) -> tuple[str, ...]:
    """The names of the operands in the text after "opcode("."""
    text = rest.partition(")")[0]
    names = re.findall(r"%([\w.<>-]+)", text)
    if not names:  # some versions write them without percent signs, after their types
        names = [word.split()[-1] for word in text.split(", ") if word]
    return tuple(names)


def _parameter(fused: Computation, index: int) -> str:
    """The name of a parameter of a computation."""
    for instruction in fused.values():
        if instruction.opcode == "parameter" and instruction.operands == (str(index),):
            return instruction.name
    raise AssertionError(f"HLO text without parameter {index}")


def _describe_moved(size: float, runs: float, instruction: Instruction) -> Moved:
    results = []
    for array in _ARRAY.finditer(instruction.type):
        shape = array[0].partition("{")[0]
        on_chip = "S(" in (array[3] or "")
        results.append(f"{shape}*" if on_chip else shape)
    path = re.search(r'op_name="([^"]*)"', instruction.rest)
    source = ""
    if path:
        source = "/".join(path[1].split("/")[-2:])
        if "transpose(" in path[1]:
            source = f"backward {source}"
    return Moved(size, runs, instruction.name, " ".join(results), source)


def _written(fused: Computation, result: str) -> float:
    """The bytes that a fusion writes, whose result has this type: only the new slice of an array
    updated in place."""
    root = _root(fused)
    parts = [root]
    if root.opcode == "tuple":
        parts = [fused[name] for name in root.operands]
    sizes = [array.bytes if array.in_memory else 0 for array in _arrays(result)]
    if len(parts) != len(sizes):
        return float(sum(sizes))
    total = 0.0
    for part, size in zip(parts, sizes, strict=True):
        while part.opcode in ("bitcast", "copy"):
            part = fused[part.operands[0]]
        if part.opcode == "dynamic-update-slice":
            update = fused[part.operands[1]]
            size = min(size, array_bytes(update.type))
        total += size
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
    """The whole number that an instruction is; None if it is none."""
    if instruction is None or instruction.opcode != "constant":
        return None
    number = re.match(r"(-?\d+)\)", instruction.rest)
    return int(number[1]) if number else None
