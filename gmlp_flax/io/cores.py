"""How many cores there are for work in parallel."""

import os


def usable_cores() -> int:
    """Cores that this process may use: what taskset, SLURM or a container leave it, not all that the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
