"""The benchmark's parts about models: training steps, long sequences, FNet's and Toeplitz
transforms, memory."""

import functools
import os
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gmlp_flax import config
from gmlp_flax.benchmarks import peers
from gmlp_flax.benchmarks.timing import Row, Worker, measure, per_second, ratios, row, step_call
from gmlp_flax.models import toeplitz
from gmlp_flax.models.blocks import fnet
from gmlp_flax.paper import published
from gmlp_flax.planning import dry_run
from gmlp_flax.training.partition import Partition

BATCH = 8
MATRICES = (2048, 4096)  # 16 MB, as large as caches are, and 64 MB
# a step touches 580 MB of fresh memory: 149,000 page faults without
HUGE_PAGES = "glibc.malloc.hugetlb=1"


def bench_step(repeats: int) -> list[Row]:
    """gMLP-S against the machine, with memory in huge pages if the C library has them (Linux)."""
    os.environ.setdefault("GLIBC_TUNABLES", HUGE_PAGES)  # read as the workers start
    with Worker(ours_and_products) as worker:
        seconds = measure(worker.calls, repeats)
    rows = []
    product_rates = {}
    for n in MATRICES:
        operations = 2 * n**3
        rates = per_second(operations, seconds.pop(f"product {n}"))
        gigaflops = [rate / 1e9 for rate in rates]
        rows.append(row(f"one f32 product of {n} x {n}", gigaflops, "GFLOP/s"))
        product_rates[n] = rates
    for name, values in seconds.items():
        images_per_second = per_second(BATCH, values)
        rows.append(row(f"gMLP-S {name}", images_per_second, "images/s"))
    forward_flops = BATCH * published.forward_flops(published.PUBLISHED["gmlp_s"])
    # The backward pass makes two products for each: with the weights (not in the stem) and with the
    # inputs.
    flops = {"forward": forward_flops, "step": 3 * forward_flops}
    goals = {"forward": "", "step": ">= 0.75"}
    for name, count in flops.items():
        rates = per_second(count, seconds[name])
        for n in MATRICES:
            share = ratios(rates, product_rates[n])
            title = f"gMLP-S {name}: share of the {n} x {n} product's rate"
            rows.append(row(title, share, "", goals[name]))
    return rows


def ours_and_products() -> dict[str, Callable]:
    """Large products and our model, under JAX."""
    products = {f"product {n}": large_product(n) for n in MATRICES}
    setting = peers.Setting("gMLP-S", BATCH, tokens=0)
    return products | peers.our_calls(setting)


def large_product(n: int) -> Callable:
    """One [n, n] x [n, n] product in float32: the speed that this machine can reach."""
    rng = np.random.default_rng(0)
    matrix = jnp.asarray(rng.standard_normal((n, n)), jnp.float32)
    product = jax.jit(jnp.matmul)

    def call() -> None:
        product(matrix, matrix).block_until_ready()

    return call


def temporary_bytes(compiled: Any) -> int:
    """The temporary memory of a compiled program."""
    return compiled.memory_analysis().temp_size_in_bytes


def bench_toeplitz(repeats: int) -> list[Row]:
    """The forms of a Toeplitz product, forward and backward, 16,384 tokens x 128 channels in
    all."""
    rows = []
    for n in (64, 128, 256, 512, 1024, 2048, 4096, 8192):
        batch = 16384 // n
        offsets = 2 * n - 1
        x = jax.random.normal(jax.random.key(0), (batch, n, 128))
        taps = jax.random.normal(jax.random.key(1), (offsets,))
        calls = {}
        for name, apply in toeplitz.FORMS.items():
            loss = _sum_of_squares(apply)
            gradient = jax.jit(jax.grad(loss, (0, 1)))
            calls[name] = functools.partial(_awaited, gradient, taps, x)
            compiled = gradient.lower(taps, x).compile()
            megabytes = temporary_bytes(compiled) / 1e6
            rows.append(row(f"n {n} {name}: temporary memory", [megabytes], "MB"))
        seconds = measure(calls, repeats)
        for name in ("blocked", "fft"):
            speed = ratios(seconds["direct"], seconds[name])
            rows.append(row(f"n {n}: {name}'s speed over direct's", speed, "x"))
    return rows


def _sum_of_squares(apply: Callable) -> Callable:
    """A scalar function of the arguments of `apply`, to differentiate."""

    def sum_of_squares(*arrays: jax.Array) -> jax.Array:
        return jnp.sum(apply(*arrays) ** 2)

    return sum_of_squares


def _awaited(call: Callable, *arrays: jax.Array) -> None:
    """Calls a function and waits for its result."""
    jax.block_until_ready(call(*arrays))


FOURIER = (
    (8, 8),
    (16, 16),
    (16, 64),
    (64, 64),
    (64, 128),
    (128, 128),
    (128, 768),
    (512, 768),
    (4096, 128),
)


def bench_fourier(repeats: int) -> list[Row]:
    """FNet's transform and its gradient, by matrix products and by FFT, of at least 262,144
    numbers. On a CPU it measures processor time, which other programs disturb less."""
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    rows = []
    for n, channels in FOURIER:
        numbers = n * channels
        batch = max(1, 262_144 // numbers)
        x = jax.random.normal(jax.random.key(0), (batch, n, channels))
        calls = {}
        for name in ("matmul", "fft"):
            transform = functools.partial(_fourier, name)
            loss = _sum_of_squares(transform)
            value_and_grad = jax.jit(jax.value_and_grad(loss))
            calls[name] = functools.partial(_awaited, value_and_grad, x)
        seconds = measure(calls, repeats, clock)
        speed = ratios(seconds["matmul"], seconds["fft"])
        title = f"{n} tokens x {channels} channels: fft's speed over matmul's"
        rows.append(row(title, speed, "x"))
    return rows


def _fourier(algorithm: str, x: jax.Array) -> jax.Array:
    return fnet.fourier(x, algorithm)


def bench_long(repeats: int) -> list[Row]:
    """The training step of a small gMLP on one sequence (configs/long_text.py), with either
    algorithm."""
    rows = []
    for n in (512, 1024, 2048, 4096, 8192, 16384):
        calls = {}
        for name in ("direct", "fft"):
            options = config.from_file("long_text.py", f"{n},scale=small")
            options.batch_size = jax.device_count()
            options.model.toeplitz = name
            lowered = dry_run.lower(options, Partition.make())
            per_token = temporary_bytes(lowered.compile()) / n
            kilobytes = per_token / 1e3
            rows.append(row(f"n {n} {name}: temporary memory per token", [kilobytes], "KB"))
            calls[name] = step_call(options)
        # at 16,384 tokens one step with the matrix takes many seconds
        seconds = measure(calls, min(repeats, 3))
        rows.append(row(f"n {n} fft: step", seconds["fft"], "s"))
        speed = ratios(seconds["direct"], seconds["fft"])
        rows.append(row(f"n {n}: fft's speed over direct's", speed, "x"))
    return rows


class Program(NamedTuple):
    """A training step that is compiled for a TPU slice.

    Attributes:
        file: the config file.
        name: its argument.
        batch: examples in a step.
        topology: the slice.
        limit: GB of temporaries per chip; None without one.
        products: matrix products that the step needs; None if they are not counted.
    """

    file: str
    name: str
    batch: int
    topology: str
    limit: float | None = None
    products: int | None = None


def _programs() -> list[Program]:
    programs = [
        Program("own_images.py", "gmlp_s", 4096, "v5e:4x4", 8.5, 17),
        Program("imagenet.py", "gmlp_b", 4096, "v5e:4x8", 9.0, 17),
    ]
    for name, model in published.PUBLISHED.items():
        if model.source == "Table 5":
            limit = 42.0 if name == "gmlp_xlarge" else None
            programs.append(Program("c4_bert.py", name, 256, "v5p:2x2x2", limit))
    return programs


def bench_memory() -> list[Row]:
    """gMLP-S, and gMLP-B with the paper's whole recipe, on TPU v5e; Table 5's models on 8 chips of
    v5p; bfloat16."""
    rows = []
    for program in _programs():
        options = config.from_file(program.file, program.name)
        options.batch_size = program.batch
        devices = dry_run.devices(program.topology)
        partition = Partition.make(options.mesh, devices)
        compiled = dry_run.lower(options, partition).compile()
        gigabytes = temporary_bytes(compiled) / 1e9
        goal = f"<= {program.limit}" if program.limit else ""
        title = f"{program.name}, batch {program.batch}, {program.topology}"
        rows.append(row(f"{title}: temporaries per chip", [gigabytes], "GB", goal))
        if program.products:
            beyond = _count_products(compiled) - program.products
            title = f"{program.name}: matrix products beyond the needed {program.products}"
            rows.append(row(title, [beyond], "", "0"))
    return rows


def _count_products(compiled: Any) -> int:
    """The matrix products of a compiled step: a block has 4, once forward and twice backward; the
    stem 1 and 1, the head 1 and 2."""
    text = compiled.as_text() or ""
    return len(re.findall(r"= \S+ (?:dot|convolution)\(", text))
