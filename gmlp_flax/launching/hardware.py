"""Topologies, as `gmlp plan` names them, in the words of clouds."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from gmlp_flax.errors import RunError
from gmlp_flax.planning import chips

# Kind -> Cloud's name for it, and how many of its type's number make a chip: some types count the cores.
TPUS = {
    "v2": ("v2", 2),
    "v3": ("v3", 2),
    "v4": ("v4", 2),
    "v5e": ("v5litepod", 1),
    "v5p": ("v5p", 2),
    "v6e": ("v6e", 1),
    "tpu7x": ("tpu7x", 2),
}
GPUS = tuple(kind for kind in chips.CHIPS if kind.startswith(chips.GPU))


class Hardware(NamedTuple):
    """A slice of TPUs, or GPUs.

    Attributes:
        kind: of the chips, such as "v5e" or "gpu:h100".
        shape: of a slice, such as "4x4"; empty for GPUs.
        chips: how many.
        node: GPUs on one machine; 0 for TPUs.
    """

    kind: str
    shape: str
    chips: int
    node: int

    @property
    def tpu_type(self) -> str:
        """Cloud's accelerator type of a slice, such as "v5litepod-16"."""
        name, per_chip = TPUS[self.kind]
        return f"{name}-{self.chips * per_chip}"

    @property
    def shaped_type(self) -> str:
        """XPK's name of a slice, such as "v5litepod-4x4": some types stand for several shapes."""
        return f"{TPUS[self.kind][0]}-{self.shape}"

    def nodes(self, gpus_per_node: int = 0) -> tuple[int, int]:
        """The number of machines and of GPUs on each.

        Args:
            gpus_per_node: how many each machine has, if not as many as usual.

        Raises:
            RunError: they do not divide.
        """
        on_each = min(gpus_per_node or self.node, self.chips)
        if self.chips % on_each:
            advice = "give a multiple, or --gpus_per_node"
            raise RunError(f"{self.chips} GPUs are no whole number of nodes of {on_each}: {advice}")
        return self.chips // on_each, on_each


def find(topology: str, kinds: Collection[str], engine: str) -> Hardware:
    """The hardware of a topology that an engine gives.

    Raises:
        RunError: there is no such topology, or the engine does not give it; it says what it gives.
    """
    kind, chip, count = chips.parse(topology)
    if kind not in kinds:
        raise RunError(f"--on={engine} does not give {topology}: it gives {', '.join(kinds)}")
    shape = "" if chip.node else topology.partition(":")[2]
    if shape and shape not in chip.slices:
        raise RunError(f"there is no slice {topology} to be had: {kind} comes as {', '.join(chip.slices)}")
    return Hardware(kind, shape, count, chip.node)
