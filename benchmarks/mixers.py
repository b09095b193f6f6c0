"""The benchmark's part about token mixers: time and memory of a training step over the number of
tokens."""

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from gmlp_flax import config, tasks
from gmlp_flax.benchmarks.timing import Row, example_batch, row
from gmlp_flax.errors import ConfigError
from gmlp_flax.models import parameters
from gmlp_flax.paper import alternatives
from gmlp_flax.planning import dry_run
from gmlp_flax.training import step
from gmlp_flax.training.partition import Partition

# A step has so many tokens, and two sequences at least: on a CPU a step of one sequence of 2,048 or
# 4,096 tokens took a fifth longer per token than one of two (a lightweight convolution), which
# would look like a power of n.
TOKENS = 2048
SEQUENCES = 2
SHARE = 0.5  # of the machine's memory that a step may take


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
        ConfigError: there is no such row, or a length is none.
    """
    chosen = alternatives.checked(rows or alternatives.ROWS, alternatives.ROWS, "--rows")
    if wrong := [length for length in lengths if not 32 <= length <= 2**20]:
        raise ConfigError(f"--lengths has {wrong[0]}: expected numbers of tokens from 32")
    return [
        entry
        for name in chosen
        for length in lengths
        for entry in _measured(name, length, scale, repeats)
    ]


def at_length(name: str, tokens: int, scale: str = "small") -> ConfigDict:
    """The config of a row of `gmlp reproduce alternatives` for another number of tokens, at least
    TOKENS a step."""
    options = config.open_config(f"c4_ablation:{name},scale={scale}")
    options.model.length, options.batch_size = tokens, max(SEQUENCES, TOKENS // tokens)
    options.masking.max_predictions = math.ceil(options.masking.rate * tokens)
    return options


def _measured(name: str, tokens: int, scale: str, repeats: int) -> list[Row]:
    """The rows of one mixer at one length."""
    options = at_length(name, tokens, scale)
    # On one device: the figures of rows compare, however many devices there are.
    partition = Partition.make(devices=jax.devices()[:1])
    compiled = dry_run.lower(options, partition).compile()
    memory: Any = compiled.memory_analysis()
    size = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    task = tasks.find(options.task)(options)
    counted = options.copy_and_resolve_references()
    if "dft" in options.model:
        counted.model.dft = "matmul"
    figures = {
        "bytes": [float(size)],
        "flops": [dry_run.forward_flops(tasks.find(options.task)(counted))],
        "parameters": [float(parameters.count(task.shapes()))],
    }
    if jax.default_backend() != "cpu" or size < SHARE * _memory():
        figures = {"seconds": _timed(compiled, options, partition, repeats)} | figures
    units = {
        "seconds": ("step", "s"),
        "bytes": ("memory of the step's program", "B"),
        "flops": ("forward pass of one sequence", "FLOP"),
        "parameters": ("parameters", ""),
    }
    about = {"row": name, "tokens": tokens, "batch": options.batch_size}
    return [
        row(
            f"{name}, {tokens} tokens x {options.batch_size}: {units[figure][0]}",
            values,
            units[figure][1],
        )
        | about
        | {"figure": figure, "values": values}
        for figure, values in figures.items()
    ]


def _timed(
    compiled: Callable, options: ConfigDict, partition: Partition, repeats: int
) -> list[float]:
    """Seconds of a compiled step, after one that is not counted. A step of many seconds is repeated
    less often."""
    task = tasks.find(options.task)(options)
    state = step.Training(task, partition).init(jax.random.key(0))
    batch = example_batch(task, partition)
    seconds = []
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    for place in range(1 + repeats):
        begin = clock()
        state, window = compiled(state, batch)
        jax.block_until_ready((state, window))
        seconds.append(clock() - begin)
        if place and sum(seconds) > 60:
            break
    return seconds[1:]


def _memory() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
