"""The collectives and the memory traffic of a compiled program, counted in its optimized HLO text.

XLA's own cost analysis counts the body of a loop once, and leaves out collectives. Here every
instruction counts as often as it runs: in the body of a loop, once per iteration; in a called
computation, once per call.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from gmlp_flax.planning.hlo_text import (
    Computation,
    Instruction,
    array_bytes,
    arrays,
    constant,
    first_group,
    parameter_of,
    parse,
    root_of,
)

# Kind of collective -> the bytes that one of n devices receives per byte of the result, by the
# algorithm that moves the least.
WIRE: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: n - 1,
    "collective-permute": lambda n: 1,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-broadcast": lambda n: 1,
}

# Instructions without traffic of their own: views, and calls, whose computations are counted
# separately.
_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "conditional",
    "call",
    "after-all",
    "partition-id",
    "replica-id",
    "iota",
    "async-start",
    "async-update",
    "opt-barrier",
}
# of libtpu
_FREE_CALLS = re.compile(
    r'custom_call_target="(AllocateBuffer|ConcatBitcast|AssumeGatherIndicesInBound)"'
)
_SLICES = {"dynamic-slice", "slice", "gather"}
# Instructions whose computations move bytes themselves, as fusions do not.
_CALLS = {"while", "conditional", "call", "async-start"}
_REDUCE_SCATTER = "all-reduce-scatter"  # what the names of libtpu's fusions begin with


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
        results: the arrays that it gives, such as "bf16[16,512] f32[512]*", with a star for one
            that stays on the chip.
        source: the JAX operation that it belongs to, after "backward" if that is a gradient's; ""
            if the text does not have it.
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


class _Run(NamedTuple):
    """How often a computation runs, and whether only inside fusions or as the operator of a
    reduction."""

    times: float
    fused: bool


class _Bound(NamedTuple):
    """A loop runs while a counter is below `end`.

    Attributes:
        counter: the place of the counter among the values that the loop carries.
        end: the first value of the counter for which the loop does not run.
    """

    counter: int
    end: int


class _Result(NamedTuple):
    """The kind of a collective, a key of WIRE, and the bytes of its result."""

    kind: str
    bytes: int


class _Transfer(NamedTuple):
    """A collective of a program.

    Attributes:
        kind: key of WIRE.
        times: how often it runs.
        size: bytes of its result.
        group: the number of devices in it.
        overlaps: whether something else runs meanwhile.
    """

    kind: str
    times: float
    size: float
    group: int
    overlaps: bool


class Program:
    """A program of XLA, from its text, for a number of devices."""

    def __init__(self, text: str, devices: int):
        module = parse(text)
        self.devices = devices
        self.entry = module.entry
        self.computations = module.computations
        self.unknown_loops = 0

    def costs(self) -> Costs:
        """Counts one call of the program."""
        runs = self._runs()
        moved = self._moved(runs)
        collectives = _sum_by_kind(self._transfers(runs))
        traffic = sum(entry.bytes for entry in moved)
        moved.sort(key=lambda entry: -entry.bytes)
        return Costs(collectives, traffic, self.unknown_loops, tuple(moved))

    # How often computations run.

    def _runs(self) -> dict[str, _Run]:
        """How often each computation runs."""
        runs: dict[str, _Run] = {}

        def visit(name: str, times: float, fused: bool) -> None:
            """Counts `times` calls of a computation, and of all computations that it calls."""
            before = runs.get(name, _Run(0.0, True))
            runs[name] = _Run(before.times + times, before.fused and fused)
            computation = self.computations[name]
            for instruction in computation.values():
                opcode = instruction.opcode
                if opcode in ("async-update", "async-done"):
                    continue  # they repeat the name that async-start calls
                calls = times
                if opcode == "while":
                    calls *= self._iterations(computation, instruction)
                is_fused = fused or opcode not in _CALLS
                for called in instruction.called:
                    if called in self.computations:
                        visit(called, calls, is_fused)

        visit(self.entry, 1.0, False)
        return runs

    def _iterations(self, computation: Computation, loop: Instruction) -> int:
        """The iterations of a loop: as XLA states them, or from a condition that compares a counter
        of step 1 with a constant."""
        stated = re.search(r'known_trip_count"?:\s*\{\s*"?n"?:\s*"?(\d+)', loop.rest)
        if stated:
            return int(stated[1])
        bound = self._bound(loop)
        if bound is None:
            self.unknown_loops += 1
            return 1
        return bound.end - self._initial(computation, loop, bound.counter)

    def _bound(self, loop: Instruction) -> _Bound | None:
        """What the condition of a loop says; None if it compares anything but a value that the
        loop carries with a constant."""
        condition_name = first_group(r"condition=%?([\w.<>-]+)", loop.rest)
        condition = self.computations[condition_name]
        compare = self._comparison(condition)
        counters = []
        limits = []
        for name in compare.operands:
            operand = condition.get(name)
            limit = constant(operand)
            if limit is not None:
                limits.append(limit)
            if operand and operand.opcode == "get-tuple-element":
                counters.append(operand)
        direction = re.search(r"direction=(LT|LE)", compare.rest)
        if len(limits) != 1 or len(counters) != 1 or not direction:
            return None
        (end,) = limits
        (counter,) = counters
        if direction[1] == "LE":
            end += 1
        index = first_group(r"index=(\d+)", counter.rest)
        return _Bound(int(index), end)

    def _comparison(self, condition: Computation) -> Instruction:
        """The instruction that compares in the condition of a loop."""
        root = root_of(condition)
        if root.opcode != "fusion":
            return root
        # the comparison is in a computation of its own, with the same operands
        fused = self._fused(root)
        return root_of(fused)._replace(operands=root.operands)

    def _initial(self, computation: Computation, loop: Instruction, index: int) -> int:
        """The first value of a loop's counter; 0 if it is not a constant before the loop."""
        carried = computation.get(loop.operands[0])
        if carried is None or carried.opcode != "tuple":
            return 0
        name = carried.operands[index]
        value = computation.get(name)
        while value and value.opcode in ("copy", "bitcast"):
            name = value.operands[0]
            value = computation.get(name)
        return constant(value) or 0

    # Collectives.

    def _transfers(self, runs: Mapping[str, _Run]) -> Iterable[_Transfer]:
        """All collectives, each once.

        libtpu splits a collective into a start, steps inside other fusions and an end, all with one
        channel. The steps may be inside a loop, so the part that runs least often counts.
        """
        transfers: dict[object, _Transfer] = {}
        for name, run in runs.items():
            computation = self.computations[name]
            for instruction in computation.values():
                kind = instruction.opcode.removesuffix("-start")
                if kind not in WIRE:
                    continue
                key = _transfer_key(name, instruction, run)
                if key in transfers and transfers[key].times <= run.times:
                    continue
                result = self._result(name, instruction, kind)
                group = self._group(instruction.rest)
                overlaps = _overlaps(name, instruction)
                transfers[key] = _Transfer(result.kind, run.times, result.bytes, group, overlaps)
        return transfers.values()

    def _result(self, name: str, instruction: Instruction, kind: str) -> _Result:
        """The result of a collective in a computation of this name."""
        if name.startswith(_REDUCE_SCATTER):
            # libtpu writes a reduce-scatter as a fusion of an all-reduce and the slice that this
            # device keeps.
            kept = root_of(self.computations[name])
            return _Result("reduce-scatter", array_bytes(kept.type))
        type_text = instruction.type
        is_start = instruction.opcode.endswith("-start")
        has_operands = kind != "all-reduce" or type_text.startswith("((")
        if not is_start or not has_operands:
            return _Result(kind, array_bytes(type_text))
        # (operands, results, and on some machines context); as many results as operands
        sizes = [array.bytes for array in arrays(type_text)]
        first = len(instruction.operands)
        stop = 2 * first
        results = sizes[first:stop]
        return _Result(kind, sum(results))

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

    # Memory traffic.

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

    def _traffic(self, computation: Computation, instruction: Instruction) -> float:
        """The bytes that an instruction moves to and from memory when it runs once."""
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith("-done") or _FREE_CALLS.search(instruction.rest):
            return 0.0
        if opcode.endswith("-start"):
            return _copied(instruction.type)
        operands = [computation.get(name) for name in instruction.operands]
        if opcode == "fusion":
            fused = self._fused(instruction)
            return self._read(fused, operands) + _written(fused, instruction.type)
        written = array_bytes(instruction.type, on_chip=False)
        if opcode == "dynamic-update-slice":
            update = operands[1]
            if update:
                return 2.0 * array_bytes(update.type, on_chip=False)
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
            if operand:
                size = array_bytes(operand.type, on_chip=False)
                part = self._part_read(fused, index)
                total += min(size, part)
        return total

    def _part_read(self, fused: Computation, index: int) -> float:
        """The bytes of a fusion's parameter that slices read; infinite if an instruction reads all
        of it."""
        names = {parameter_of(fused, index)}  # of the parameter and of views of it
        total = 0.0
        for instruction in fused.values():
            uses = [number for number, name in enumerate(instruction.operands) if name in names]
            if not uses:
                continue
            opcode = instruction.opcode
            is_first_only = uses == [0]
            if opcode == "bitcast":
                names.add(instruction.name)
            elif opcode == "fusion":  # a fusion inside a fusion
                inner = self._fused(instruction)
                for number in uses:
                    total += self._part_read(inner, number)
            elif opcode in _SLICES and is_first_only:
                total += array_bytes(instruction.type)
            elif opcode == "dynamic-update-slice" and is_first_only:
                continue  # updated in place
            else:
                return math.inf
        return total

    def _fused(self, fusion: Instruction) -> Computation:
        """The computation of a fusion."""
        name = fusion.called[0]
        return self.computations[name]


def _sum_by_kind(transfers: Iterable[_Transfer]) -> dict[str, Collectives]:
    """The collectives of each kind, by kind in alphabetical order."""
    by_kind: dict[str, Collectives] = collections.defaultdict(Collectives)
    for transfer in transfers:
        total = by_kind[transfer.kind]
        received_per_byte = WIRE[transfer.kind]
        result_bytes = transfer.times * transfer.size
        wire_bytes = result_bytes * received_per_byte(transfer.group)
        total.count += round(transfer.times)
        total.bytes += result_bytes
        total.wire_bytes += wire_bytes
        if not transfer.overlaps:
            total.waiting_bytes += wire_bytes
    return dict(sorted(by_kind.items()))


def _transfer_key(computation: str, instruction: Instruction, run: _Run) -> object:
    """What all parts of a collective share: the channel of parts in fusions, else the
    instruction."""
    is_part = run.fused and not computation.startswith(_REDUCE_SCATTER)
    if is_part:
        channel = re.search(r"channel_id=\d+", instruction.rest)
        if channel:
            return channel[0]
    return computation, instruction.name


def _overlaps(computation: str, instruction: Instruction) -> bool:
    """Whether something else runs during a collective in a computation of this name."""
    is_start = instruction.opcode.endswith("-start")
    is_chained = "chain_id=" in instruction.rest
    return is_start or is_chained or computation.startswith("async")


def _copied(result: str) -> float:
    """The bytes to and from memory of an asynchronous copy with a result of this type: (source,
    destination, context), of which source or destination may be on the chip."""
    ends = list(arrays(result))[:2]
    size = min(end.bytes for end in ends)
    transfers = 0
    for end in ends:
        if end.in_memory:
            transfers += 1
    return float(size * transfers)


def _written(fused: Computation, result: str) -> float:
    """The bytes that a fusion writes, whose result has this type: only the new slice of an array
    updated in place."""
    root = root_of(fused)
    parts = [root]
    if root.opcode == "tuple":
        parts = [fused[name] for name in root.operands]
    sizes = [array.bytes if array.in_memory else 0 for array in arrays(result)]
    if len(parts) != len(sizes):
        return float(sum(sizes))
    total = 0.0
    for part, size in zip(parts, sizes, strict=True):
        updated = _updated(fused, part)
        total += min(size, updated)
    return total


def _updated(fused: Computation, part: Instruction) -> float:
    """The bytes of the new slice if a part of a fusion's result is an array updated in place; else
    infinite."""
    while part.opcode in ("bitcast", "copy"):
        part = fused[part.operands[0]]
    if part.opcode != "dynamic-update-slice":
        return math.inf
    update = fused[part.operands[1]]
    return array_bytes(update.type)


def _describe_moved(size: float, runs: float, instruction: Instruction) -> Moved:
    results = []
    for array in arrays(instruction.type):
        results.append(array.shape if array.in_memory else f"{array.shape}*")
    path = re.search(r'op_name="([^"]*)"', instruction.rest)
    source = ""
    if path:
        last_names = path[1].split("/")[-2:]
        source = "/".join(last_names)
        if "transpose(" in path[1]:
            source = f"backward {source}"
    return Moved(size, runs, instruction.name, " ".join(results), source)
