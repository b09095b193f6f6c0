"""The benchmark's part `device`: how close an accelerator comes to its own peak, and which forms of
mixing are fast.

Each row is reported as soon as it is measured. The part ends in time: the rest is left out. Models
run one after another, each in a separate process, so that each may take all the memory.
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
from gmlp_flax.benchmarks.timing import (
    Row,
    example_batch,
    in_milliseconds,
    measure,
    per_second,
    ratios,
    row,
)
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.models import blocks, toeplitz
from gmlp_flax.models.attention.multi_head import MultiHeadAttention
from gmlp_flax.models.blocks.gmlp import SpatialGatingUnit
from gmlp_flax.planning import dry_run
from gmlp_flax.training import step
from gmlp_flax.training.partition import Partition

PRODUCT = "one large product"


class Setting(NamedTuple):
    """A setting of a model that is tried: examples in a step, the remat policy, and whether layers
    run in one loop."""

    batch: int
    remat: str
    scan_layers: bool

    def __str__(self) -> str:
        words = f"batch {self.batch}, remat {self.remat}"
        if self.scan_layers:
            return words
        return f"{words}, unrolled"


class Model(NamedTuple):
    """A model of the table.

    Attributes:
        name: for the table.
        file, argument: its config.
        settings: the first that fits into memory is measured.
        goal: for its share of the peak.
        every: whether all settings are measured.
    """

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
    """How a kind of device is measured.

    Attributes:
        dtype: the type of activations.
        matrix: the side of the large matrices.
        tokens: tokens in a batch of a mixing layer.
        lengths: tokens in a sequence of a mixing layer.
        batch: examples in a step; 0 for those of MODELS.
        steps: steps that are dispatched at once.
    """

    dtype: str
    matrix: int
    tokens: int
    lengths: tuple[int, ...]
    batch: int
    steps: int


ACCELERATOR = Device("bfloat16", 8192, 32768, (128, 512, 2048, 16384), 0, 10)
CPU = Device("float32", 1024, 512, (128, 512), 2, 1)  # shows that the part works, no more


class Measured(NamedTuple):
    """The measurements of one setting.

    Attributes:
        setting: of the model.
        seconds: of a step.
        product: operations per second of the large product, in turn with the steps.
        peak: bytes of memory.
    """

    setting: Setting
    seconds: list[float]
    product: list[float]
    peak: float

    @property
    def rate(self) -> float:
        """Examples per second, the median."""
        return self.setting.batch / statistics.median(self.seconds)


class Beside(NamedTuple):
    """A peer that is measured next to a model of ours.

    Attributes:
        key: in peers.PEERS.
        title: for the table.
        batch: examples in a step.
        tokens: in an example; 0 for images.
    """

    key: str
    title: str
    batch: int
    tokens: int


# Name in MODELS -> the peer.
BESIDE = {
    "gMLP-S": Beside("gMLP-S", "timm gmlp_s16_224", 256, 0),
    "BERT-base, n = 512": Beside("BERT-base", "transformers BertForMaskedLM", 64, 512),
}


def bench_device(repeats: int, models: Sequence[str], minutes: float) -> Iterator[Row]:
    """Models next to one large matrix product; forms of attention, of the gate and of Toeplitz
    products at several lengths; then timm and transformers under torch.compile, if they are
    installed.

    Args:
        repeats: measurements of each figure.
        models: arguments of the configs of some of MODELS; empty for all.
        minutes: no measurement begins after them.

    Raises:
        ConfigError: there is no such model.
    """
    _check_models(models)
    # By default a process takes three quarters of the memory at its start and leaves too little for
    # the next one.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    end = time.monotonic() + 60 * minutes
    device = CPU if jax.default_backend() == "cpu" else ACCELERATOR
    for name, part in _parts(models, device, repeats, end).items():
        if time.monotonic() > end:
            _say(f"{name} and what follows is left out: --minutes={minutes:g} are over")
            return
        _say(f"{name} ...")
        try:
            yield from part()
        except RunError as error:
            _say(f"{name} is left out: {error}")


def _check_models(models: Sequence[str]) -> None:
    """Raises ConfigError if one of them is not in MODELS."""
    known = [model.argument for model in MODELS]
    for name in models:
        if name not in known:
            expected = ", ".join(known)
            raise ConfigError(f"there is no model {name!r}: expected some of {expected}")


def _parts(
    models: Sequence[str], device: Device, repeats: int, end: float
) -> dict[str, Callable[[], Iterator[Row]]]:
    """Name -> what measures the rows of a model, of a length of mixing, or of a peer, in order. No
    model of MODELS is tried in another setting after `end`, a time of time.monotonic."""
    fastest: dict[str, float] = {}
    parts: dict[str, Callable[[], Iterator[Row]]] = {}
    for model in MODELS:
        if not models or model.argument in models:
            parts[model.name] = functools.partial(model_rows, model, device, repeats, end, fastest)
    if not models:
        for n in device.lengths:
            parts[f"mixing, n = {n}"] = functools.partial(mixing_rows, n, device, repeats)
    for name, peer in BESIDE.items():
        if name in parts:
            parts[peer.title] = functools.partial(peer_rows, name, peer, device, repeats, fastest)
    return parts


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def model_rows(
    model: Model, device: Device, repeats: int, end: float, fastest: dict[str, float]
) -> Iterator[Row]:
    """The rows of one model: the rate of each measured setting, then the fastest one. Keeps its
    examples per second in `fastest`."""
    best: Measured | None = None
    for setting in model.settings:
        if best and (not model.every or time.monotonic() > end):
            break
        setting = setting._replace(batch=device.batch or setting.batch)
        measured = in_own_process(_measured, model, setting, device, repeats)
        if measured is None:
            _say(f"  {setting}: does not fit into memory")
            continue
        rates = per_second(setting.batch, measured.seconds)
        yield row(f"{model.name}, {setting}: rate", rates, "examples/s")
        if best is None or measured.rate > best.rate:
            best = measured
    if best is not None:
        fastest[model.name] = best.rate
        yield from _rows_of_best(model, best, device)


def _rows_of_best(model: Model, best: Measured, device: Device) -> Iterator[Row]:
    """The rows of a model's fastest setting."""
    options = _options(model, best.setting, device)
    task = tasks.find(options.task)(options)
    name = model.name
    side = device.matrix
    teraflops = [rate / 1e12 for rate in best.product]
    yield row(f"{PRODUCT} of {side} x {side} in {device.dtype}", teraflops, "TFLOP/s")
    yield row(f"{name}: step", in_milliseconds(best.seconds), "ms")
    if task.units_per_example > 1:
        units_per_step = best.setting.batch * task.units_per_example
        rates = per_second(units_per_step, best.seconds)
        yield row(f"{name}: rate", rates, f"{task.unit}/s")
    flops = dry_run.workload(options).flops
    achieved = per_second(flops, best.seconds)
    shares = ratios(achieved, best.product)
    yield row(f"{name}: model FLOPs, of the product's rate", shares, "", model.goal)
    peak_gigabytes = best.peak / 1e9
    yield row(f"{name}: memory at its peak", [peak_gigabytes], "GB")


def _options(model: Model, setting: Setting, device: Device) -> ConfigDict:
    options = config.from_file(model.file, model.argument).copy_and_resolve_references()
    options.batch_size = setting.batch
    options.model.dtype = device.dtype
    options.model.remat = setting.remat
    options.model.scan_layers = setting.scan_layers or device is CPU
    return options


def _measured(model: Model, setting: Setting, device: Device, repeats: int) -> Measured | None:
    """Training steps of a model, dispatched at once and then awaited, in turn with as many large
    products; None if they do not fit into memory."""
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
        message = str(error)
        if "RESOURCE_EXHAUSTED" in message or "out of memory" in message.lower():
            return None
        raise
    operations = 2 * device.matrix**3 * device.steps
    memory: Any = compiled.memory_analysis()
    return Measured(
        setting,
        seconds=[value / device.steps for value in seconds["step"]],
        product=per_second(operations, seconds["product"]),
        peak=memory.peak_memory_in_bytes,
    )


def _products(device: Device) -> Callable[[], None]:
    numbers = jax.random.normal(jax.random.key(0), (device.matrix, device.matrix))
    scaled = numbers / device.matrix**0.5  # its powers keep their size
    matrix = scaled.astype(device.dtype)
    product = jax.jit(jnp.matmul)

    def products() -> None:
        x = matrix
        for _ in range(device.steps):
            x = product(x, matrix)
        jax.block_until_ready(x)

    return products


def in_own_process(function: Callable, *args: Any) -> Any:
    """Calls a function in a separate process, which then frees its memory."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *args).result()
        except BrokenProcessPool:
            what = f"the process that ran {function.__name__} has died"
            raise RunError(f"{what}: what it wrote stands above") from None


def mixing_rows(n: int, device: Device, repeats: int) -> Iterator[Row]:
    """Forms of one layer's mixing at n tokens, forwards and backwards: milliseconds, and
    temporaries."""
    for form in in_own_process(_mixing, n, device, repeats):
        title = f"n {n}, {form.name}"
        yield row(title, in_milliseconds(form.seconds), "ms")
        if form.temporaries is not None:
            gigabytes = form.temporaries / 1e9
            yield row(f"{title}: temporaries", [gigabytes], "GB")


class MeasuredForm(NamedTuple):
    """The measurements of a form of mixing: seconds of a call, and bytes of temporaries."""

    name: str
    seconds: list[float]
    temporaries: float | None


def _mixing(n: int, device: Device, repeats: int) -> list[MeasuredForm]:
    """The measurements of each form; those that do not fit into memory are left out."""
    batch = max(1, device.tokens // n)
    calls = {}
    temporaries = {}
    forms = mixing_forms(n, batch, device.dtype)
    for name, (call, arrays) in forms.items():
        loss = _squared_sum(call)
        gradient = jax.jit(jax.grad(loss, (0, 1)))
        try:
            compiled = gradient.lower(*arrays).compile()
            jax.block_until_ready(compiled(*arrays))
        except jax.errors.JaxRuntimeError as error:
            first_line, *_ = str(error).splitlines()
            _say(f"  n {n}, {name} is left out: {first_line}")
            continue
        memory: Any = compiled.memory_analysis()
        temporaries[name] = memory.temp_size_in_bytes
        calls[name] = functools.partial(_in_a_row, compiled, arrays, device.steps)
    seconds = measure(calls, repeats)
    measured = []
    for name in calls:
        seconds_of_call = [value / device.steps for value in seconds[name]]
        measured.append(MeasuredForm(name, seconds_of_call, temporaries[name]))
    return measured


def _squared_sum(call: Callable) -> Callable:
    """A scalar function of the arguments of a call, to differentiate."""

    def squared_sum(*arrays: Any) -> jax.Array:
        squares = jnp.square(call(*arrays))
        return squares.astype("float32").sum()

    return squared_sum


def _in_a_row(call: Callable, arrays: Sequence[jax.Array], count: int) -> None:
    result = None
    for _ in range(count):
        result = call(*arrays)
    jax.block_until_ready(result)


def mixing_forms(
    n: int, batch: int, dtype: str
) -> dict[str, tuple[Callable, tuple[Any, jax.Array]]]:
    """Name -> a function of parameters and activations, and its arguments. Forms are as in
    BERT-base (12 heads of 64) and gMLP-base (1,536 channels in the gate, Toeplitz), and the forms of
    a Toeplitz product alone, on as many channels."""
    forms: dict[str, tuple[Callable, tuple[Any, jax.Array]]] = {}

    def activations(width: int) -> jax.Array:
        numbers = jax.random.normal(jax.random.key(1), (batch, n, width))
        return numbers.astype(dtype)

    def add(name: str, module: nnx.Module, width: int) -> None:
        definition, params = nnx.split(module)

        def call(params: Any, x: jax.Array) -> Any:
            merged: Any = nnx.merge(definition, params)
            return merged(x)

        x = activations(width)
        forms[name] = call, (params, x)

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
            attention = MultiHeadAttention(spec, nnx.Rngs(0))
            add(f"attention {form}, positions {positions}", attention, 768)
    for form in toeplitz.FORMS:
        spec = gmlp.Spec(block=gmlp, d_ffn=3072, toeplitz=form, **shape)
        gate = SpatialGatingUnit(spec, nnx.Rngs(0))
        add(f"gate, Toeplitz {form}", gate, 3072)
    offsets = 2 * n - 1
    taps = jax.random.normal(jax.random.key(2), (offsets,)).astype(dtype)
    x = activations(1536)
    for form, apply in toeplitz.FORMS.items():
        forms[f"Toeplitz product {form}"] = apply, (taps, x)
    return forms


def peer_rows(
    name: str, peer: Beside, device: Device, repeats: int, fastest: dict[str, float]
) -> Iterator[Row]:
    """A peer's examples per second under torch.compile, and ours divided by them; raises RunError
    if it is not installed."""
    batch = device.batch or peer.batch
    setting = peers.Setting(peer.key, batch, peer.tokens, device.dtype)
    make = functools.partial(peers.torch_calls, setting)
    seconds, memory = in_own_process(_torch_seconds, make, device, repeats)
    rates = per_second(batch, seconds)
    yield row(f"{peer.title}, torch.compile, batch {batch}: rate", rates, "examples/s")
    if memory:
        gigabytes = memory / 1e9
        yield row(f"{peer.title}: memory at its peak", [gigabytes], "GB")
    if name in fastest:
        speed = [fastest[name] / rate for rate in rates]
        yield row(f"{name}: rate, ours / {peer.title}", speed, "x", ">= 1.3")


def _torch_seconds(make: Callable, device: Device, repeats: int) -> tuple[list[float], float]:
    """Seconds of a step of a peer, and its peak memory on a GPU in bytes."""
    step_of_peer = make()["step"]
    torch = __import__("torch")
    on_gpu = torch.cuda.is_available()

    def steps() -> None:
        for _ in range(device.steps):
            step_of_peer()
        if on_gpu:
            torch.cuda.synchronize()

    seconds = measure({"step": steps}, repeats)["step"]
    seconds_of_step = [value / device.steps for value in seconds]
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0.0
    return seconds_of_step, peak
