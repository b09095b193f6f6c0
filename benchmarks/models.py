"""The benchmark's parts about models: training steps, long sequences, FNet's and Toeplitz
transforms, memory."""

import os
import re
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from gmlp_flax import config
from gmlp_flax.benchmarks import peers
from gmlp_flax.benchmarks.timing import Row, Worker, measure, ratios, row, step_call
from gmlp_flax.models import toeplitz
from gmlp_flax.models.blocks import fnet
from gmlp_flax.paper import published
from gmlp_flax.planning import dry_run
from gmlp_flax.training.partition import Partition

BATCH = 8
MATRICES = (2048, 4096)  # of 16 MB, as large as caches are, and of 64 MB
# a step touches 580 MB of fresh memory: 149,000 page faults without
HUGE_PAGES = "glibc.malloc.hugetlb=1"


def bench_step(repeats: int) -> list[Row]:
    """gMLP-S against the machine, with memory in huge pages if the C library can (Linux)."""
    os.environ.setdefault("GLIBC_TUNABLES", HUGE_PAGES)  # read as the workers start
    with Worker(ours_and_products) as worker:
        seconds = measure(worker.calls, repeats)
    forward_flops = BATCH * published.forward_flops(published.PUBLISHED["gmlp_s"])
    # The backward pass makes two products for each: with the weights (not in the stem) and with the
    # inputs.
    flops = {"forward": forward_flops, "step": 3 * forward_flops}
    rates = {n: [2 * n**3 / value for value in seconds.pop(f"product {n}")] for n in MATRICES}
    rows = [
        row(f"one f32 product of {n} x {n}", [rate / 1e9 for rate in rates[n]], "GFLOP/s")
        for n in MATRICES
    ]
    rows += [
        row(f"gMLP-S {name}", [BATCH / value for value in values], "images/s")
        for name, values in seconds.items()
    ]
    for name, count in flops.items():
        for n in MATRICES:
            share = ratios([count / value for value in seconds[name]], rates[n])
            goal = ">= 0.75" if "step" in name else ""
            rows.append(
                row(f"gMLP-S {name}: share of the {n} x {n} product's rate", share, "", goal)
            )
    return rows


def ours_and_products() -> dict[str, Callable]:
    """Large products and our model, under JAX."""
    return {f"product {n}": large_product(n) for n in MATRICES} | peers.our_calls(
        "gMLP-S", BATCH, 0
    )


def large_product(n: int) -> Callable:
    """One [n, n] x [n, n] product in float32: the speed that this machine can reach."""
    matrix = jnp.asarray(np.random.default_rng(0).standard_normal((n, n)), jnp.float32)
    product = jax.jit(jnp.matmul)
    return lambda: product(matrix, matrix).block_until_ready()


def bench_toeplitz(repeats: int) -> list[Row]:
    """The forms of a Toeplitz product, forward and backward, 16,384 tokens x 128 channels in
    all."""
    rows = []
    for n in (64, 128, 256, 512, 1024, 2048, 4096, 8192):
        x = jax.random.normal(jax.random.key(0), (16384 // n, n, 128))
        taps = jax.random.normal(jax.random.key(1), (2 * n - 1,))
        calls = {}
        for name, apply in toeplitz.FORMS.items():
            gradient = jax.jit(
                jax.grad(lambda taps, x, apply=apply: (apply(taps, x) ** 2).sum(), (0, 1))
            )
            calls[name] = lambda run=gradient, args=(taps, x): jax.block_until_ready(run(*args))
            temporary = gradient.lower(taps, x).compile().memory_analysis().temp_size_in_bytes
            rows.append(row(f"n {n} {name}: temporary memory", [temporary / 1e6], "MB"))
        seconds = measure(calls, repeats)
        for name in ("blocked", "fft"):
            rows.append(
                row(
                    f"n {n}: {name}'s speed over direct's",
                    ratios(seconds["direct"], seconds[name]),
                    "x",
                )
            )
    return rows


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
    """FNet's transform and its gradient, by matrix products and by FFT, of 262,144 numbers at
    least. On a CPU, processor time, which other programs disturb less."""
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    rows = []
    for n, channels in FOURIER:
        x = jax.random.normal(jax.random.key(0), (max(1, 262_144 // (n * channels)), n, channels))
        calls = {}
        for name in ("matmul", "fft"):
            both = jax.jit(
                jax.value_and_grad(lambda x, name=name: (fnet.fourier(x, name) ** 2).sum())
            )
            calls[name] = lambda both=both, x=x: jax.block_until_ready(both(x))
        seconds = measure(calls, repeats, clock)
        speed = ratios(seconds["matmul"], seconds["fft"])
        rows.append(row(f"{n} tokens x {channels} channels: fft's speed over matmul's", speed, "x"))
    return rows


def bench_long(repeats: int) -> list[Row]:
    """The training step of a small gMLP on one sequence (configs/long_text.py), with either
    algorithm."""
    rows = []
    for n in (512, 1024, 2048, 4096, 8192, 16384):
        calls = {}
        for name in ("direct", "fft"):
            options = config.from_file("long_text.py", f"{n},scale=small")
            options.batch_size, options.model.toeplitz = jax.device_count(), name
            compiled = dry_run.lower(options, Partition.make()).compile()
            temporary = compiled.memory_analysis().temp_size_in_bytes / n
            rows.append(row(f"n {n} {name}: temporary memory per token", [temporary / 1e3], "KB"))
            calls[name] = step_call(options)
        # at 16,384 tokens one step with the matrix takes many seconds
        seconds = measure(calls, min(repeats, 3))
        rows.append(row(f"n {n} fft: step", seconds["fft"], "s"))
        rows.append(
            row(f"n {n}: fft's speed over direct's", ratios(seconds["direct"], seconds["fft"]), "x")
        )
    return rows


# Config, its argument, examples per step, TPU slice, limits: GB of temporaries per chip, and matrix
# products.
PROGRAMS = (
    ("own_images.py", "gmlp_s", 4096, "v5e:4x4", 8.5, 17),
    ("imagenet.py", "gmlp_b", 4096, "v5e:4x8", 9.0, 17),
    *(
        ("c4_bert.py", name, 256, "v5p:2x2x2", 42.0 if name == "gmlp_xlarge" else None, None)
        for name, model in published.PUBLISHED.items()
        if model.source == "Table 5"
    ),
)


def bench_memory() -> list[Row]:
    """gMLP-S, and gMLP-B with the paper's whole recipe, on TPU v5e; Table 5's models on 8 chips of
    v5p; bfloat16."""
    rows = []
    for file, name, batch, topology, limit, needed in PROGRAMS:
        options = config.from_file(file, name)
        options.batch_size = batch
        compiled = dry_run.lower(
            options, Partition.make(options.mesh, dry_run.devices(topology))
        ).compile()
        temporary = compiled.memory_analysis().temp_size_in_bytes / 1e9
        goal = f"<= {limit}" if limit else ""
        rows.append(
            row(f"{name}, batch {batch}, {topology}: temporaries per chip", [temporary], "GB", goal)
        )
        if needed:
            # A block has 4 products, once forward and twice backward; the stem 1 and 1, the head 1
            # and 2.
            products = len(re.findall(r"= \S+ (?:dot|convolution)\(", compiled.as_text() or ""))
            rows.append(
                row(
                    f"{name}: matrix products beyond the needed {needed}",
                    [products - needed],
                    "",
                    "0",
                )
            )
    return rows
