"""The benchmark's part `device`: how near an accelerator comes to its own peak, and which forms of
mixing are fast.

Each row stands as soon as it is measured, and the part ends in time: what is left is left out.
Every model runs in a process of its own, one after another, so that each may take all the memory.
"""

import functools
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax import config, tasks
from gmlp_flax.benchmarks import peers
from gmlp_flax.benchmarks.timing import Row, example_batch, measure, ratios, row
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.models import blocks, toeplitz
from gmlp_flax.models.attention import MultiHeadAttention
from gmlp_flax.models.blocks.gmlp import SpatialGatingUnit
from gmlp_flax.planning import dry_run
from gmlp_flax.training import step
from gmlp_flax.training.partition import Partition

PRODUCT = "one large product"


class Setting(NamedTuple):
    """What is tried of a model: examples of a step, the remat policy, and whether layers run in one
    loop."""

    batch: int
    remat: str
    scan_layers: bool

    def __str__(self) -> str:
        return f"batch {self.batch}, remat {self.remat}{'' if self.scan_layers else ', unrolled'}"


class Model(NamedTuple):
    """A model of the table: its config, settings of which the first that fits into memory is
    measured, or `every` one, and the goal for the share of the peak."""

    name: str
    file: str
    argument: str
    settings: tuple[Setting, ...]
    goal: str = ""
    every: bool = False


def _settings(batch: int) -> tuple[Setting, ...]:
    return Setting(batch, "none", False), Setting(batch, "matmuls", True)


MODELS = (
    Model("gMLP-B", "imagenet.py", "gmlp_b", _settings(256), ">= 0.5", every=True),
    Model("gMLP-S", "imagenet.py", "gmlp_s", _settings(256)),
    Model("gMLP-base, n = 512", "c4_bert.py", "gmlp_base", _settings(64)),
    Model("BERT-base, n = 512", "c4_bert.py", "bert_base", _settings(64)),
    Model("aMLP-base, n = 512", "c4_bert.py", "amlp_base", _settings(64)),
)


class Device(NamedTuple):
    """How a kind of device is measured: type of activations, side of the large matrices, tokens of
    a mixing layer and its lengths, batch (0: as MODELS say) and steps at once."""

    dtype: str
    matrix: int
    tokens: int
    lengths: tuple[int, ...]
    batch: int
    steps: int


ACCELERATOR = Device("bfloat16", 8192, 32768, (128, 512, 2048, 16384), 0, 10)
CPU = Device("float32", 1024, 512, (128, 512), 2, 1)  # shows that the part works, no more


class Measured(NamedTuple):
    """Of one setting: seconds of a step, operations per second of the large product in turn with
    it, and peak bytes."""

    setting: Setting
    seconds: list[float]
    product: list[float]
    peak: float


def bench_device(repeats: int, models: Sequence[str], minutes: float) -> Iterator[Row]:
    """Models beside one large matrix product; forms of attention, of the gate and of Toeplitz
    products at several lengths; then timm and transformers under torch.compile, where they are
    installed.

    Args:
        repeats: measurements of each figure.
        models: the second words of some of MODELS' configs; none for all.
        minutes: nothing is begun after them.

    Raises:
        ConfigError: there is no such model.
    """
    known = {model.argument: model for model in MODELS}
    if unknown := [model for model in models if model not in known]:
        raise ConfigError(f"there is no model {unknown[0]!r}: expected some of {', '.join(known)}")
    # By default a process takes three quarters of the memory at its start and leaves too little for
    # the next one.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    end = time.monotonic() + 60 * minutes
    device = CPU if jax.default_backend() == "cpu" else ACCELERATOR
    fastest: dict[str, float] = {}
    parts: list[tuple[str, Callable[[], Iterator[Row]]]] = [
        (model.name, functools.partial(model_rows, model, device, repeats, end, fastest))
        for model in MODELS
        if not models or model.argument in models
    ]
    if not models:
        parts += [
            (f"mixing, n = {n}", functools.partial(mixing_rows, n, device, repeats))
            for n in device.lengths
        ]
    for name, key, peer, batch, tokens in BESIDE:
        if name in [part for part, _ in parts]:
            batch = device.batch or batch
            made = functools.partial(peers.torch_calls, key, batch, tokens, device.dtype)
            parts.append(
                (
                    peer,
                    functools.partial(peer_rows, name, peer, batch, made, device, repeats, fastest),
                )
            )
    for name, part in parts:
        if time.monotonic() > end:
            print(
                f"{name} and what follows is left out: --minutes={minutes:g} are over",
                file=sys.stderr,
            )
            return
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            yield from part()
        except RunError as error:
            print(f"{name} is left out: {error}", file=sys.stderr, flush=True)


def model_rows(
    model: Model, device: Device, repeats: int, end: float, fastest: dict[str, float]
) -> Iterator[Row]:
    """The rows of one model, of the fastest of its settings; keeps its examples per second in
    `fastest`."""
    best: Measured | None = None
    for setting in model.settings:
        if best and (not model.every or time.monotonic() > end):
            break
        setting = setting._replace(batch=device.batch or setting.batch)
        found = in_own_process(_measured, model, setting, device, repeats)
        if found is None:
            print(f"  {setting}: does not fit into memory", file=sys.stderr, flush=True)
            continue
        rates = [setting.batch / seconds for seconds in found.seconds]
        yield row(f"{model.name}, {setting}: rate", rates, "examples/s")
        if best is None or statistics.median(rates) > best.setting.batch / statistics.median(
            best.seconds
        ):
            best = found
    if best is None:
        return
    options = _options(model, best.setting, device)
    task = tasks.find(options.task)(options)
    examples = best.setting.batch
    fastest[model.name] = examples / statistics.median(best.seconds)
    yield row(
        f"{PRODUCT} of {device.matrix} x {device.matrix} in {device.dtype}",
        [x / 1e12 for x in best.product],
        "TFLOP/s",
    )
    yield row(f"{model.name}: step", [1e3 * seconds for seconds in best.seconds], "ms")
    if task.units_per_example > 1:
        units = [examples * task.units_per_example / seconds for seconds in best.seconds]
        yield row(f"{model.name}: rate", units, f"{task.unit}/s")
    shares = ratios(
        [dry_run.workload(options).flops / seconds for seconds in best.seconds], best.product
    )
    yield row(f"{model.name}: model FLOPs, of the product's rate", shares, "", model.goal)
    yield row(f"{model.name}: memory at its peak", [best.peak / 1e9], "GB")


def _options(model: Model, setting: Setting, device: Device) -> ConfigDict:
    options = config.from_file(model.file, model.argument).copy_and_resolve_references()
    options.model.dtype, options.batch_size = device.dtype, setting.batch
    options.model.remat, options.model.scan_layers = (
        setting.remat,
        setting.scan_layers or device is CPU,
    )
    return options


def _measured(model: Model, setting: Setting, device: Device, repeats: int) -> Measured | None:
    """Some training steps of a model, dispatched at once and then awaited, in turn with as many
    large products; None if they do not fit into memory."""
    options = _options(model, setting, device)
    partition = Partition.make(devices=jax.devices()[:1])
    task = tasks.find(options.task)(options)
    training = step.Training(task, partition)
    batch = example_batch(task, partition)
    try:
        state = [training.init(jax.random.key(0))]
        compiled = training.step.lower(state[0], batch).compile()

        def steps() -> None:
            window = None
            for _ in range(device.steps):
                state[0], window = compiled(state[0], batch)
            jax.block_until_ready((state[0], window))

        calls = {"product": _products(device), "step": steps}
        seconds = measure(calls, repeats)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower():
            return None
        raise
    flops = 2 * device.matrix**3 * device.steps
    memory: Any = compiled.memory_analysis()
    return Measured(
        setting,
        [value / device.steps for value in seconds["step"]],
        [flops / value for value in seconds["product"]],
        memory.peak_memory_in_bytes,
    )


def _products(device: Device) -> Callable[[], None]:
    numbers = jax.random.normal(jax.random.key(0), (device.matrix, device.matrix))
    matrix = (numbers / device.matrix**0.5).astype(device.dtype)  # keeps its powers of one size
    product = jax.jit(jnp.matmul)

    def products() -> None:
        x = matrix
        for _ in range(device.steps):
            x = product(x, matrix)
        jax.block_until_ready(x)

    return products


def in_own_process(function: Callable, *args: Any) -> Any:
    """Calls a function in a process of its own, which then gives its memory back."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(function, *args).result()
        except BrokenProcessPool:
            what = f"the process that ran {function.__name__} has died"
            raise RunError(f"{what}: what it wrote stands above") from None


def mixing_rows(n: int, device: Device, repeats: int) -> Iterator[Row]:
    """Forms of one layer's mixing at n tokens, forwards and backwards: milliseconds, and
    temporaries."""
    for name, seconds, temporary in in_own_process(_mixing, n, device, repeats):
        yield row(f"n {n}, {name}", [1e3 * value for value in seconds], "ms")
        if temporary is not None:
            yield row(f"n {n}, {name}: temporaries", [temporary / 1e9], "GB")


def _mixing(n: int, device: Device, repeats: int) -> list[tuple[str, list[float], float | None]]:
    """(Name, seconds, temporaries in bytes) of each form; those that do not fit into memory are
    left out."""
    batch = max(1, device.tokens // n)
    calls = {}
    temporaries = {}
    for name, (call, arrays) in mixing_forms(n, batch, device.dtype).items():
        gradient = jax.jit(
            jax.grad(
                lambda *arrays, call=call: jnp.square(call(*arrays)).astype("float32").sum(), (0, 1)
            )
        )
        try:
            compiled = gradient.lower(*arrays).compile()
            jax.block_until_ready(compiled(*arrays))
        except jax.errors.JaxRuntimeError as error:
            print(
                f"  n {n}, {name} is left out: {str(error).splitlines()[0]}",
                file=sys.stderr,
                flush=True,
            )
            continue
        memory: Any = compiled.memory_analysis()
        temporaries[name] = memory.temp_size_in_bytes
        calls[name] = functools.partial(_in_a_row, compiled, arrays, device.steps)
    seconds = measure(calls, repeats)
    return [
        (name, [value / device.steps for value in seconds[name]], temporaries[name])
        for name in calls
    ]


def _in_a_row(call: Callable, arrays: Sequence[jax.Array], count: int) -> None:
    result = None
    for _ in range(count):
        result = call(*arrays)
    jax.block_until_ready(result)


def mixing_forms(
    n: int, batch: int, dtype: str
) -> dict[str, tuple[Callable, tuple[Any, jax.Array]]]:
    """Name -> a function of parameters and activations, and both. As in BERT-base (12 heads of 64)
    and gMLP-base (1,536 channels in the gate, Toeplitz), and the two ways of a Toeplitz product
    alone, on as many channels."""
    forms: dict[str, tuple[Callable, tuple[Any, jax.Array]]] = {}

    def add(name: str, module: Callable[[], nnx.Module], width: int) -> None:
        definition, params = nnx.split(module())
        x = jax.random.normal(jax.random.key(1), (batch, n, width)).astype(dtype)
        forms[name] = (lambda params, x: nnx.merge(definition, params)(x)), (params, x)

    transformer: Any = blocks.find("transformer")
    gmlp: Any = blocks.find("gmlp")
    shape = {"layers": 1, "d_model": 768, "length": n, "dtype": dtype}
    for form in ("auto", "xla"):
        for positions in ("none", "relative"):
            spec = transformer.Spec(
                block=transformer,
                d_ffn=3072,
                heads=12,
                positions=positions,
                attention=form,
                **shape,
            )
            add(
                f"attention {form}, positions {positions}",
                lambda spec=spec: MultiHeadAttention(spec, nnx.Rngs(0)),
                768,
            )
    taps = jax.random.normal(jax.random.key(2), (2 * n - 1,)).astype(dtype)
    x = jax.random.normal(jax.random.key(1), (batch, n, 1536)).astype(dtype)
    for form in toeplitz.FORMS:
        spec = gmlp.Spec(block=gmlp, d_ffn=3072, toeplitz=form, **shape)
        add(f"gate, Toeplitz {form}", lambda spec=spec: SpatialGatingUnit(spec, nnx.Rngs(0)), 3072)
    forms |= {
        f"Toeplitz product {form}": (apply, (taps, x)) for form, apply in toeplitz.FORMS.items()
    }
    return forms


def peer_rows(
    name: str,
    peer: str,
    batch: int,
    make: Callable[[], dict[str, Callable[[], None]]],
    device: Device,
    repeats: int,
    fastest: dict[str, float],
) -> Iterator[Row]:
    """A peer's examples per second under torch.compile, and ours by them. Raises RunError: it is
    not installed."""
    seconds, memory = in_own_process(_torch_seconds, make, device, repeats)
    rates = [batch / value for value in seconds]
    yield row(f"{peer}, torch.compile, batch {batch}: rate", rates, "examples/s")
    if memory:
        yield row(f"{peer}: memory at its peak", [memory / 1e9], "GB")
    if name in fastest:
        yield row(
            f"{name}: rate, ours / {peer}", [fastest[name] / rate for rate in rates], "x", ">= 1.3"
        )


def _torch_seconds(make: Callable, device: Device, repeats: int) -> tuple[list[float], float]:
    """Seconds of a step of a peer, and its peak memory on a GPU in bytes."""
    one = make()["step"]
    torch = __import__("torch")
    on_gpu = torch.cuda.is_available()

    def steps() -> None:
        for _ in range(device.steps):
            one()
        if on_gpu:
            torch.cuda.synchronize()

    seconds = measure({"step": steps}, repeats)["step"]
    return [
        value / device.steps for value in seconds
    ], torch.cuda.max_memory_allocated() if on_gpu else 0.0


# Ours, the peer of `peers` and what it is called, examples of a step, and tokens of one.
BESIDE = (
    ("gMLP-S", "gMLP-S", "timm gmlp_s16_224", 256, 0),
    ("BERT-base, n = 512", "BERT-base", "transformers BertForMaskedLM", 64, 512),
)
