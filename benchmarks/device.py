"""The benchmark's part `device`: how near one accelerator comes to its own peak, each model at its best batch.

Every program runs in a process of its own, one after another, so that each may take all the memory.
"""

import concurrent.futures
import functools
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from gmlp_flax import config, tasks
from gmlp_flax.benchmarks.timing import Row, Worker, measure, ratios, row, step_call
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.interop.timm import import_beside_torch
from gmlp_flax.planning import dry_run, workload
from gmlp_flax.training.partition import Partition

# Name, config, its argument, timm's name, the goal for the share of the peak.
MODELS = (
    ("gMLP-S", "imagenet.py", "gmlp_s", "gmlp_s16_224", ""),
    ("gMLP-B", "imagenet.py", "gmlp_b", "", ">= 0.5"),
    ("gMLP-base, n = 512", "c4_bert.py", "gmlp_base", "", ""),
    ("aMLP-base, n = 512", "c4_bert.py", "amlp_base", "", ""),
)
ENOUGH = 1.02  # a batch twice as large must be so much faster to be tried further
OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "out of memory")


class Device(NamedTuple):
    """How a kind of device is measured: type of activations, side of the large matrices, batches, steps at once."""

    dtype: str
    matrix: int
    batches: tuple[int, ...]
    steps: int


ACCELERATOR = Device("bfloat16", 8192, (32, 64, 128, 256, 512, 1024, 2048), 10)
CPU = Device("float32", 2048, (2,), 1)  # shows that the part works, no more


class Best(NamedTuple):
    """The settings of a model's fastest step, and its peak memory in bytes, or 0 if unknown."""

    batch: int
    remat: str
    peak: float


def bench_device(repeats: int, models: Sequence[str]) -> list[Row]:
    """Steps of gMLP and aMLP beside one large matrix product, and gMLP-S beside timm's under torch.compile.

    Args:
        repeats: measurements of each figure.
        models: the second words of some of MODELS' configs; none for all.

    Raises:
        ConfigError: there is no such model.
    """
    known = [argument for _, _, argument, *_ in MODELS]
    if unknown := [model for model in models if model not in known]:
        raise ConfigError(f"there is no model {unknown[0]!r}: expected some of {', '.join(known)}")
    # By default a process takes three quarters of the memory at its start and leaves too little for the next one.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    device = CPU if jax.default_backend() == "cpu" else ACCELERATOR
    rows: list[Row] = []
    for name, file, argument, peer, goal in MODELS:
        if models and argument not in models:
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        options = config.from_file(file, argument)
        options.model.dtype = device.dtype
        rows += rows_of(name, options, peer, goal, device, repeats)
    return rows


def rows_of(name: str, options: ConfigDict, peer: str, goal: str, device: Device, repeats: int) -> list[Row]:
    """The rows of one model.

    Args:
        name: its name in the rows.
        options: its config; batch and remat policy are searched for.
        peer: timm's name for it, or "".
        goal: the goal for the share of the peak, or "".
        device: how to measure it.
        repeats: measurements of each figure.
    """
    best = _apart(best_of_ours, options, device)
    options = settled(options, best.batch, best.remat)
    task = tasks.find(options.task).without_data(options)
    unit, examples = f"{task.unit}/s", best.batch * task.units_per_example
    with Worker(functools.partial(our_calls, options, device)) as ours:
        seconds = measure(ours.calls, repeats)
    steps = [value / device.steps for value in seconds["step"]]
    product = [2 * device.matrix**3 * device.steps / value for value in seconds["product"]]
    flops = workload.of(options).flops
    title = f"{name}, batch {best.batch}, remat {best.remat}"
    rows = [
        row(f"one large {device.dtype} product", [rate / 1e12 for rate in product], "TFLOP/s"),
        row(f"{title}: step", [1e3 * value for value in steps], "ms"),
        row(f"{title}: rate", [examples / value for value in steps], unit),
        row(
            f"{name}: model FLOPs, of the product's rate", ratios([flops / value for value in steps], product), "", goal
        ),
        row(f"{name}: memory at its peak", [best.peak / 1e9], "GB"),
    ]
    return rows + (_peer(name, peer, steps, best.batch, device, repeats) if peer else [])


def _peer(name: str, peer: str, ours: list[float], batch: int, device: Device, repeats: int) -> list[Row]:
    """timm's model at its own best batch, beside the seconds of our step."""
    try:
        import_beside_torch("timm")
    except RunError as error:
        print(f"timm is left out: {error}", file=sys.stderr)
        return []
    best = _apart(best_of_timm, peer, device)
    with Worker(functools.partial(timm_calls, peer, best.batch, device)) as timm:
        seconds = [value / device.steps for value in measure(timm.calls, repeats)["step"]]
    rates, our_rate = [best.batch / value for value in seconds], batch / statistics.median(ours)
    memory = [row(f"timm {peer}: memory at its peak", [best.peak / 1e9], "GB")] if best.peak else []
    return [
        row(f"timm {peer}, torch.compile, batch {best.batch}: rate", rates, "images/s"),
        *memory,
        row(f"{name} step, ours / timm", [our_rate / rate for rate in rates], "x", ">= 1.3"),
    ]


def _apart(function: Callable, *args: Any) -> Any:
    """Calls a function in a process of its own, which then gives its memory back."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *args).result()
        except BrokenProcessPool:
            what = f"the process that ran {function.__name__} has died"
            raise RunError(f"{what}: what it wrote stands above") from None


def fastest(make: Callable[[int], Callable[[], Any]], batches: tuple[int, ...]) -> tuple[int, float]:
    """The batch with the most examples per second, and their number; tries larger ones while they gain and fit.

    Args:
        make: gives a call that runs one or several steps of a batch.
        batches: from the smallest; the first must fit.
    """
    found = (0, 0.0)
    for batch in batches:
        print(f"  batch {batch} ...", file=sys.stderr, flush=True)
        try:
            call = make(batch)
            call()
            begin = time.perf_counter()
            call()
        except Exception as error:
            if not found[0] or not any(words in str(error) for words in OUT_OF_MEMORY):
                raise
            break
        rate = batch / (time.perf_counter() - begin)
        if rate < ENOUGH * found[1]:
            break
        found = (batch, rate)
        del call  # frees its parameters before the next are made
    return found


def settled(options: ConfigDict, batch: int, remat: str) -> ConfigDict:
    """A copy of the config with that batch and policy."""
    options = options.copy_and_resolve_references()
    options.batch_size, options.model.remat = batch, remat
    return options


def best_of_ours(options: ConfigDict, device: Device) -> Best:
    """Tries batches with every policy that could be the fastest."""
    tried = {
        remat: fastest(lambda batch, remat=remat: our_step(settled(options, batch, remat), device), device.batches)
        for remat in ("matmuls", "none")
    }
    remat = max(tried, key=lambda remat: tried[remat][1])
    batch = tried[remat][0]
    compiled = dry_run.lower(settled(options, batch, remat), _one_device()).compile()
    return Best(batch, remat, compiled.memory_analysis().peak_memory_in_bytes)


def our_step(options: ConfigDict, device: Device) -> Callable[[], None]:
    """Several training steps of a config on one device, dispatched at once and awaited together."""
    return step_call(options, _one_device(), device.steps)


def our_calls(options: ConfigDict, device: Device) -> dict[str, Callable[[], None]]:
    """The steps, and the same number of large products."""
    numbers = jax.random.normal(jax.random.key(0), (device.matrix, device.matrix))
    matrix = (numbers / device.matrix**0.5).astype(device.dtype)  # keeps its powers of one size
    product = jax.jit(jnp.matmul)

    def products() -> None:
        x = matrix
        for _ in range(device.steps):
            x = product(x, matrix)
        jax.block_until_ready(x)

    return {"product": products, "step": our_step(options, device)}


def _one_device() -> Partition:
    return Partition.make(devices=jax.devices()[:1])


def best_of_timm(name: str, device: Device) -> Best:
    """Tries batches of timm's model."""
    import torch

    batch, _ = fastest(lambda batch: timm_calls(name, batch, device)["step"], device.batches)
    if not torch.cuda.is_available():
        return Best(batch, "none", 0.0)
    torch.cuda.reset_peak_memory_stats()
    timm_calls(name, batch, device)["step"]()
    return Best(batch, "none", torch.cuda.max_memory_allocated())


def timm_calls(name: str, batch: int, device: Device) -> dict[str, Callable[[], None]]:
    """Several training steps of timm's model, compiled by torch, with activations of the same type as ours."""
    timm = import_beside_torch("timm")
    import torch

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    model = torch.compile(timm.create_model(name).to(kind).train())
    adamw = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05, fused=True)
    images, labels = torch.randn(batch, 3, 224, 224, device=kind), torch.arange(batch, device=kind) % 1000
    half = torch.autocast(kind, torch.bfloat16, enabled=device.dtype == "bfloat16")

    def steps() -> None:
        for _ in range(device.steps):
            adamw.zero_grad()
            with half:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adamw.step()
        if kind == "cuda":
            torch.cuda.synchronize()

    return {"step": steps}
