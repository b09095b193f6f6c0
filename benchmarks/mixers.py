"""The benchmark's part about token mixers: time and memory of a training step over the number of
tokens."""

import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from gmlp_flax import config, tasks
from gmlp_flax.benchmarks.timing import Row, example_batch, row
from gmlp_flax.io.logs import heartbeat
from gmlp_flax.models import parameters
from gmlp_flax.paper import alternatives
from gmlp_flax.planning import dry_run
from gmlp_flax.training import step
from gmlp_flax.training.partition import Partition

# A step has this many tokens, and at least two sequences: on a CPU a step of one sequence of 2,048
# or 4,096 tokens took a fifth longer per token than one of two (a lightweight convolution), which
# would look like a power of n.
TOKENS = 2048
SEQUENCES = 2
SHARE = 0.5  # of the machine's memory that a step may take
# Figure -> what it is, and its unit.
FIGURES = {
    "seconds": ("step", "s"),
    "bytes": ("memory of the step's program", "B"),
    "flops": ("forward pass of one sequence", "FLOP"),
    "parameters": ("parameters", ""),
}


def bench_mixers(
    repeats: int, rows: Sequence[str], lengths: Sequence[int], scale: str = "small"
) -> list[Row]:
    """Each row at each length: seconds of a step, bytes of its program, operations of its forward
    pass.

    On a CPU, seconds are the processor's, of all cores together: other programs disturb them less.
    Operations are those of matrix products, as in `gmlp sizes`, whether a transform is made by them
    or by FFT. A step that would take more than half of the memory of a machine without an
    accelerator is compiled and not run. Entries have the keys `row`, `tokens`, `batch` and `figure`
    ("seconds", "bytes", "flops", "parameters") as well.

    Raises:
        ConfigError: there is no such row, a class cannot be imported, or a length is none.
    """
    chosen = alternatives.checked_rows(rows, alternatives.ROWS)
    alternatives.check_cost_lengths(lengths)
    entries = []
    for name, length in itertools.product(chosen, lengths):
        with heartbeat(f"measuring {name} with {length:,} tokens", at_once=False):
            entries += _measured(name, length, scale, repeats)
    return entries


def at_length(name: str, tokens: int, scale: str = "small") -> ConfigDict:
    """The config of a row of `gmlp reproduce alternatives` for another number of tokens, at least
    TOKENS a step."""
    options = config.open_config(f"c4_ablation:{name},scale={scale}")
    options.model.length = tokens
    options.batch_size = max(SEQUENCES, TOKENS // tokens)
    options.masking.max_predictions = math.ceil(options.masking.rate * tokens)
    return options


def _measured(name: str, tokens: int, scale: str, repeats: int) -> list[Row]:
    """The rows of one mixer at one length."""
    options = at_length(name, tokens, scale)
    # Figures on one device compare, however many devices there are.
    first_device, *_ = jax.devices()
    partition = Partition.make(devices=[first_device])
    compiled = dry_run.lower(options, partition).compile()
    memory: Any = compiled.memory_analysis()
    size = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    figures = {}
    if jax.default_backend() != "cpu" or size < SHARE * _memory():
        figures["seconds"] = _timed(compiled, options, partition, repeats)
    task = tasks.find(options.task)(options)
    count = parameters.count(task.shapes())
    figures["bytes"] = [float(size)]
    figures["flops"] = [_forward_flops(options)]
    figures["parameters"] = [float(count)]
    batch = options.batch_size
    title = f"{name}, {tokens} tokens x {batch}"
    about = {"row": name, "tokens": tokens, "batch": batch}
    entries = []
    for figure, values in figures.items():
        words, unit = FIGURES[figure]
        measured = row(f"{title}: {words}", values, unit)
        entries.append({**measured, **about, "figure": figure, "values": values})
    return entries


def _forward_flops(options: ConfigDict) -> float:
    """Operations of the forward pass of one sequence, with transforms as matrix products."""
    counted = options.copy_and_resolve_references()
    if "dft" in options.model:
        counted.model.dft = "matmul"
    task = tasks.find(counted.task)(counted)
    return dry_run.forward_flops(task)


def _timed(
    compiled: Callable, options: ConfigDict, partition: Partition, repeats: int
) -> list[float]:
    """Seconds of a compiled step, after one that is not counted. A step of many seconds is repeated
    less often."""
    task = tasks.find(options.task)(options)
    training = step.Training(task, partition)
    state = training.init(jax.random.key(0))
    batch = example_batch(task, partition)
    seconds = []
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    for number in range(1 + repeats):
        start = clock()
        state, window = compiled(state, batch)
        jax.block_until_ready((state, window))
        seconds.append(clock() - start)
        if number > 0 and sum(seconds) > 60:
            break
    return seconds[1:]


def _memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
