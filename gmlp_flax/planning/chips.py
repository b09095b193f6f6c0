"""The accelerators for which a plan can be made: their memory, their speeds, and the slices that
are sold.

Figures are for a whole chip, as printed; programs reach less. "recalled" marks figures whose source
was not read again. TPU: docs.cloud.google.com/tpu/docs/v5e and the like. GPU: NVIDIA's data sheets,
SXM, dense products.
"""

import difflib
import math
import os
import re
from typing import NamedTuple

from gmlp_flax.errors import RunError

GIB = 2**30
TERA = 1e12
GIGA = 1e9
SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION"


class Processors(NamedTuple):
    """The description of a GPU that XLA compiles for when the machine has none, with the names of
    its GpuTargetConfigProto."""

    capability: str  # NVIDIA's compute capability
    core_count: int  # streaming multiprocessors
    fpus_per_core: int
    shared_memory_per_core: int  # bytes, of which a program may have all but 1 KiB
    threads_per_core_limit: int
    l2_cache_size: int  # bytes
    clock_rate_ghz: float


class Chip(NamedTuple):
    """One kind of chip.

    Attributes:
        hbm_bytes: memory.
        hbm_bandwidth: bytes per second to and from memory.
        flops: bfloat16 operations per second in matrix products.
        link: bytes per second that a chip receives over all its links to other chips: half of the
            bandwidth that is printed as bidirectional.
        slices: the usual slices, smallest first, as libtpu names them after the kind; none for
            GPUs.
        node: the number of GPUs that these links connect; 0 for TPUs.
        network: bytes per second that a GPU receives from another node.
        processors: of a GPU.
        device: the beginning of JAX's name for such a device (`device_kind`).
    """

    hbm_bytes: float
    hbm_bandwidth: float
    flops: float
    link: float
    slices: tuple[str, ...] = ()
    node: int = 0
    network: float = 0.0
    processors: Processors | None = None
    device: str = ""

    def usable_bytes(self) -> float:
        """The memory that JAX gives to programs: all of a TPU's, and three quarters of a GPU's, or
        the share in the variable SHARE."""
        if not self.node:
            return float(self.hbm_bytes)
        share = os.environ.get(SHARE, "0.75")
        return self.hbm_bytes * float(share)

    def link_seconds(self, size: float, chips: int) -> float:
        """Seconds in which each of some chips receives `size` bytes. The GPUs of a node first add
        up among themselves. Then each sends its part of the node's bytes to other nodes."""
        seconds = size / self.link
        if self.node and chips > self.node:
            seconds += size / self.node / self.network
        return seconds


_2D = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_3D = (
    "2x2x1",
    "2x2x2",
    "2x2x4",
    "2x4x4",
    "4x4x4",
    "4x4x8",
    "4x8x8",
    "8x8x8",
    "8x8x16",
    "8x16x16",
    "16x16x16",
)
_V2 = ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16")

_AMPERE = Processors("8.0", 108, 64, 164 << 10, 2048, 40 << 20, 1.41)
_ADA = Processors("8.9", 58, 128, 100 << 10, 1536, 48 << 20, 2.04)
_RTX = _ADA._replace(core_count=128, l2_cache_size=72 << 20, clock_rate_ghz=2.52)
_HOPPER = Processors("9.0", 132, 128, 228 << 10, 2048, 50 << 20, 1.98)
_BLACKWELL = Processors("10.0", 148, 128, 228 << 10, 2048, 132_644_864, 1.965)

CHIPS: dict[str, Chip] = {
    # v2: 46 TFLOP/s, 16 GiB at 700 GB/s; 4 links of 62 GB/s (Norrie et al. 2021); recalled.
    "v2": Chip(16 * GIB, 700 * GIGA, 46 * TERA, 4 * 62 * GIGA, _V2, device="TPU v2"),
    # v3: tpu/docs/v3, 123 TFLOP/s, 32 GiB at 900 GB/s; 4 links of 70 GB/s (arXiv 2304.01433, Table
    # 4), recalled.
    "v3": Chip(
        32 * GIB, 900 * GIGA, 123 * TERA, 4 * 70 * GIGA, (*_V2, "16x32", "32x32"), device="TPU v3"
    ),
    # v4: tpu/docs/v4, 275 TFLOP/s, 32 GiB at 1200 GB/s; 6 links of 50 GB/s (arXiv 2304.01433, Table
    # 4), recalled.
    "v4": Chip(32 * GIB, 1200 * GIGA, 275 * TERA, 6 * 50 * GIGA, _3D, device="TPU v4"),
    # v5e: tpu/docs/v5e, 197 TFLOP/s, 16 GB at 819 GB/s, 400 GB/s bidirectional.
    "v5e": Chip(16 * GIB, 819 * GIGA, 197 * TERA, 200 * GIGA, _2D, device="TPU v5 lite"),
    # v5p: tpu/docs/v5p, 459 TFLOP/s, 95 GiB at 2765 GB/s, 1200 GB/s bidirectional.
    "v5p": Chip(95 * GIB, 2765 * GIGA, 459 * TERA, 600 * GIGA, _3D, device="TPU v5"),
    # v6e: tpu/docs/v6e, 918 TFLOP/s, 32 GB at 1638 GB/s, 800 GB/s bidirectional.
    "v6e": Chip(32 * GIB, 1638 * GIGA, 918 * TERA, 400 * GIGA, _2D, device="TPU v6 lite"),
    # tpu7x: tpu/docs/tpu7x, 2307 TFLOP/s, 192 GiB; 7380 GB/s and 1200 GB/s bidirectional recalled.
    "tpu7x": Chip(192 * GIB, 7380 * GIGA, 2307 * TERA, 600 * GIGA, _3D, device="TPU7x"),
    # GPUs: the descriptions are XLA's own, or from NVIDIA's white papers.
    # A100: 312 TFLOP/s; 80 GB at 2039 GB/s, 40 GB at 1555 GB/s; NVLink 600 GB/s; 8 x 200 Gb/s a
    # DGX, recalled.
    "gpu:a100": Chip(
        80 * GIGA,
        2039 * GIGA,
        312 * TERA,
        300 * GIGA,
        (),
        8,
        25 * GIGA,
        _AMPERE,
        "NVIDIA A100-SXM4-80GB",
    ),
    "gpu:a100-40gb": Chip(
        40 * GIGA,
        1555 * GIGA,
        312 * TERA,
        300 * GIGA,
        (),
        8,
        25 * GIGA,
        _AMPERE,
        "NVIDIA A100-SXM4-40GB",
    ),
    # H100 and H200: 989 TFLOP/s; 80 GB at 3.35 TB/s, 141 GB at 4.8 TB/s; NVLink 900 GB/s; 8 x 400
    # Gb/s a DGX, recalled.
    "gpu:h100": Chip(
        80 * GIGA,
        3350 * GIGA,
        989 * TERA,
        450 * GIGA,
        (),
        8,
        50 * GIGA,
        _HOPPER,
        "NVIDIA H100 80GB HBM3",
    ),
    "gpu:h200": Chip(
        141 * GIGA, 4800 * GIGA, 989 * TERA, 450 * GIGA, (), 8, 50 * GIGA, _HOPPER, "NVIDIA H200"
    ),
    # B200: 2250 TFLOP/s, 180 GB at 8 TB/s (DGX B200: 1440 GB and 64 TB/s in 8), NVLink 1800 GB/s;
    # network recalled.
    "gpu:b200": Chip(
        180 * GIGA,
        8000 * GIGA,
        2250 * TERA,
        900 * GIGA,
        (),
        8,
        50 * GIGA,
        _BLACKWELL,
        "NVIDIA B200",
    ),
    # L4: 121 TFLOP/s, 24 GB at 300 GB/s, PCIe 64 GB/s both ways; a machine's 100 Gb/s for 8 of
    # them. All recalled.
    "gpu:l4": Chip(
        24 * GIGA, 300 * GIGA, 121 * TERA, 32 * GIGA, (), 8, 1.6 * GIGA, _ADA, "NVIDIA L4"
    ),
    # RTX 4090: 165 TFLOP/s, 24 GB at 1008 GB/s, PCIe 64 GB/s both ways, and the same network. All
    # recalled.
    "gpu:rtx4090": Chip(
        24 * GIGA,
        1008 * GIGA,
        165 * TERA,
        32 * GIGA,
        (),
        8,
        1.6 * GIGA,
        _RTX,
        "NVIDIA GeForce RTX 4090",
    ),
}


class Topology(NamedTuple):
    """A slice of TPUs, or GPUs.

    Attributes:
        kind: of the chips, such as "v5e" or "gpu:h100".
        shape: of a slice, such as "4x4"; empty for GPUs.
        count: the number of chips.
    """

    kind: str
    shape: str
    count: int

    @property
    def chip(self) -> Chip:
        """The figures of one chip."""
        return CHIPS[self.kind]

    def larger(self) -> list[str]:
        """The two next larger topologies of this kind, as text."""
        larger = []
        if self.chip.node:
            for count in (2 * self.count, 4 * self.count):
                larger.append(f"{self.kind}x{count}")
            return larger
        for shape in self.chip.slices:
            if _product(shape) > self.count:
                larger.append(f"{self.kind}:{shape}")
        return larger[:2]


def of_device(name: str) -> str | None:
    """The kind of a device, by JAX's name for it: the one whose `device` is the longest that the
    name begins with; None if it is not among CHIPS."""
    matching = []
    for kind, chip in CHIPS.items():
        # in whole words, so a space ends both
        if f"{name} ".startswith(f"{chip.device} "):
            matching.append(kind)

    def length(kind: str) -> int:
        return len(CHIPS[kind].device)

    return max(matching, key=length, default=None)


def usual(kind: str, count: int) -> str | None:
    """The topology of `count` chips of a kind, as text; None if no usual slice has as many."""
    if CHIPS[kind].processors:
        return f"{kind}x{count}"
    for shape in CHIPS[kind].slices:
        if _product(shape) == count:
            return f"{kind}:{shape}"
    return None


def known() -> list[str]:
    """The usual topologies: all slices of TPUs, and one and eight of each GPU."""
    names = []
    for kind, chip in CHIPS.items():
        if chip.node:
            names += [f"{kind}x1", f"{kind}x{chip.node}"]
        for shape in chip.slices:
            names.append(f"{kind}:{shape}")
    return names


_SHAPE = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*)*")
# Google Cloud's names of accelerators, v5litepod-64 and v4-8: a kind and a number of chips or, of
# these kinds, of cores.
_ACCELERATOR = re.compile(r"(?:tpu-)?(v\d+[ep]?|v5lite|v5litepod|tpu7x)-(\d{1,6})")
_CORES_PER_CHIP = {"v2": 2, "v3": 2, "v4": 2, "v5p": 2}


def _of_accelerator(name: str) -> str | None:
    """The topology that a name of Google Cloud stands for; None if it is not one, or not of a
    usual slice."""
    match = _ACCELERATOR.fullmatch(name.lower())
    if not match:
        return None
    kind, cores = match.groups()
    if kind.startswith("v5lite"):
        kind = "v5e"
    if kind not in CHIPS:
        return None
    count = int(cores) // _CORES_PER_CHIP.get(kind, 1)
    return usual(kind, count)


def parse(topology: str) -> Topology:
    """Reads a topology, such as "v5e:4x4" or "gpu:h100x8".

    Raises:
        RunError: the kind is unknown or the rest is not a shape. The message has the topology that
            is probably meant, or the three nearest ones.
    """
    if topology.startswith("gpu:"):
        kind, _, shape = topology.rpartition("x")
    else:
        kind, _, shape = topology.partition(":")
    if kind not in CHIPS or not _SHAPE.fullmatch(shape):
        raise RunError(f"there is no topology {topology!r}: {advice(topology)}")
    count = _product(shape)
    slices = CHIPS[kind].slices
    if not slices:
        return Topology(kind, "", count)
    example = slices[0]
    sides = shape.count("x") + 1
    if sides != example.count("x") + 1:
        raise RunError(
            f"{topology!r} is no slice of {kind}, which are written as {kind}:{example}: "
            f"{advice(topology)}"
        )
    return Topology(kind, shape, count)


def advice(topology: str) -> str:
    """What an unknown topology may have meant."""
    probable = _of_accelerator(topology)
    if probable:
        return f"write {probable}"
    kind, _, shape = topology.partition(":")
    if kind in CHIPS and _SHAPE.fullmatch(shape):
        nearest = _nearest_slices(kind, _product(shape))
    else:
        nearest = difflib.get_close_matches(topology, known(), n=3, cutoff=0)
    return f"the nearest are {', '.join(nearest)}"


def _nearest_slices(kind: str, count: int) -> list[str]:
    """The three slices of a kind whose numbers of chips are nearest to `count`."""

    def distance(shape: str) -> int:
        chips = _product(shape)
        return abs(chips - count)

    shapes = CHIPS[kind].slices
    by_distance = sorted(shapes, key=distance)
    nearest = by_distance[:3]
    return [f"{kind}:{shape}" for shape in nearest]


def _product(shape: str) -> int:
    """The number of chips of a shape such as "4x4"."""
    sides = [int(side) for side in shape.split("x")]
    return math.prod(sides)
