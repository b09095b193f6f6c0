"""The machine that a benchmark ran on, as each line of its CSV says it."""

import dataclasses
import datetime
import importlib.metadata
import os
import platform

from gmlp_flax.data.pipeline import usable_cores
from gmlp_flax.processes import platforms

PACKAGES = ("jax", "jaxlib", "torch", "timm", "transformers")
BUSY = 0.25  # a core's share that other processes use, from which a machine is not idle


@dataclasses.dataclass(frozen=True)
class Machine:
    """What speeds depend on.

    Attributes:
        processor: its name as the operating system gives it.
        cores: that this process may use.
        instructions: the widest vector instructions: "AVX-512", "AVX2", or "" if not known; and
            those for products of bfloat16, as in "AVX-512, AMX".
        software: Python and the packages that are measured, with their versions.
        date: when, YYYY-MM-DD.
        load: processes that wanted to run in the last minute before the benchmark, on average.
    """

    processor: str
    cores: int
    instructions: str
    software: str
    date: str
    load: float

    @classmethod
    def here(cls) -> "Machine":
        """This one, now."""
        described = platforms.cpu_features()
        return cls(
            processor=_processor(described),
            cores=usable_cores(),
            instructions=_instructions(described),
            software=_software(),
            date=datetime.date.today().isoformat(),
            load=os.getloadavg()[0],
        )

    @property
    def idle(self) -> bool:
        """Whether nothing else ran before the benchmark."""
        return self.load < BUSY * self.cores

    def columns(self) -> dict[str, str | int]:
        """Column of a CSV file -> its value."""
        return {
            "processor": self.processor,
            "cores": self.cores,
            "instructions": self.instructions,
            "software": self.software,
            "date": self.date,
            "idle": "yes" if self.idle else f"no, load {self.load:.1f}",
        }

    def __str__(self) -> str:
        parts = [f"{self.processor}, {self.cores} cores"]
        if self.instructions:
            parts.append(self.instructions)
        parts.append(self.software)
        if not self.idle:
            parts.append(f"not idle: a load of {self.load:.1f}, so trust only ratios")
        return "; ".join(parts)


def _processor(described: str) -> str:
    """The name, and on x86 the family and the model, as one name may stand for several."""
    facts = {}
    for line in described.splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    name = facts.get("model name") or platform.processor() or platform.machine()
    if "cpu family" not in facts:
        return name
    return f"{name} (family {facts['cpu family']}, model {facts['model']})"


def _instructions(described: str) -> str:
    flags = set(described.split())
    names = []
    if "avx512f" in flags:
        names.append("AVX-512")
    elif "avx2" in flags:
        names.append("AVX2")
    if "amx_bf16" in flags:
        names.append("AMX")
    elif "avx512_bf16" in flags:
        names.append("BF16")
    return ", ".join(names)


def _software() -> str:
    versions = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        versions.append(f"{package} {version}")
    return ", ".join(versions)
