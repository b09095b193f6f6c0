"""The benchmark's part `products`: single matrix products of float32 at the shapes of three image
models, forwards and for both gradients, by XLA and by torch: which product makes a step slower."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gmlp_flax.benchmarks.beside_torch import import_beside_torch
from gmlp_flax.benchmarks.timing import Row, Worker, measure, per_second, ratios, row
from gmlp_flax.models.matmul import over_channels, over_tokens

BATCHES = (8, 32)
TOKENS = 196
CALLS = 10  # of a product in one measurement: one takes a few milliseconds
KINDS = ("forward", "gradient of the input", "gradient of the weight")


class Product(NamedTuple):
    """A product of activations [batch, tokens, channels] with a weight.

    Attributes:
        model: which has it.
        weight: its shape: [in, out] over channels, [out, in] over tokens.
        tokens, channels: of the activations.
        is_over_tokens: which axis it mixes.
    """

    model: str
    weight: tuple[int, int]
    tokens: int
    channels: int
    is_over_tokens: bool

    def title(self, batch: int) -> str:
        """Its shapes."""
        weight = list(self.weight)
        activations = [batch, self.tokens, self.channels]
        return f"{self.model}: {weight} on {activations}"

    def flops(self, batch: int) -> int:
        """Operations, two for each multiply-add."""
        d_in, d_out = self.weight
        others = self.channels if self.is_over_tokens else self.tokens
        return 2 * batch * others * d_in * d_out

    def arrays(self, batch: int) -> dict[str, np.ndarray]:
        """Random activations, weight, and gradient of the output."""
        out_tokens = self.tokens
        out_channels = self.channels
        if self.is_over_tokens:
            out_tokens, _ = self.weight
        else:
            _, out_channels = self.weight
        shapes = {
            "x": (batch, self.tokens, self.channels),
            "weight": self.weight,
            "gradient": (batch, out_tokens, out_channels),
        }
        rng = np.random.default_rng(0)
        arrays = {}
        for name, shape in shapes.items():
            numbers = rng.normal(size=shape)
            arrays[name] = numbers.astype(np.float32)
        return arrays


def _over_channels(model: str, d_in: int, d_out: int) -> Product:
    return Product(model, (d_in, d_out), TOKENS, d_in, is_over_tokens=False)


def _over_tokens(model: str, tokens: int, out: int, channels: int) -> Product:
    return Product(model, (out, tokens), tokens, channels, is_over_tokens=True)


PRODUCTS = (
    _over_channels("gMLP-S", 256, 1536),
    _over_channels("gMLP-S", 768, 256),
    _over_tokens("gMLP-S", TOKENS, TOKENS, 768),
    _over_channels("ResMLP-S12", 384, 1536),
    _over_channels("ResMLP-S12", 1536, 384),
    _over_tokens("ResMLP-S12", TOKENS, TOKENS, 384),
    _over_channels("Mixer-B/16", 768, 3072),
    _over_channels("Mixer-B/16", 3072, 768),
    _over_tokens("Mixer-B/16", TOKENS, 384, 768),
    _over_tokens("Mixer-B/16", 384, TOKENS, 768),
)


def bench_products(repeats: int) -> Iterator[Row]:
    """Our rate of each product, and our speed over torch's.

    Raises:
        RunError: torch is not installed.
    """
    import_beside_torch("torch")
    for batch in BATCHES:
        make_ours = functools.partial(our_products, batch)
        make_torch = functools.partial(torch_products, batch)
        with Worker(make_ours) as ours, Worker(make_torch) as torch:
            for number, product in enumerate(PRODUCTS):
                for kind in KINDS:
                    name = _name(number, kind)
                    calls = {"ours": ours.calls[name], "torch": torch.calls[name]}
                    seconds = measure(calls, repeats)
                    title = f"{product.title(batch)}, {kind}"
                    operations = CALLS * product.flops(batch)
                    rates = per_second(operations, seconds["ours"])
                    gigaflops = [rate / 1e9 for rate in rates]
                    yield row(title, gigaflops, "GFLOP/s")
                    speed = ratios(seconds["torch"], seconds["ours"])
                    yield row(f"{title}, ours / torch", speed, "x")


def _name(number: int, kind: str) -> str:
    return f"{number} {kind}"


def our_products(batch: int) -> dict[str, Callable[[], None]]:
    """Name -> a call of a product in the form in which our models have it."""
    calls = {}
    for number, product in enumerate(PRODUCTS):
        arrays = {}
        for name, array in product.arrays(batch).items():
            arrays[name] = jnp.asarray(array)
        for kind, function in our_functions(product).items():
            compiled = jax.jit(function)
            calls[_name(number, kind)] = functools.partial(_run, compiled, arrays)
    return calls


def _run(function: Callable[..., Any], arrays: dict[str, Any]) -> None:
    result = None
    for _ in range(CALLS):
        result = function(**arrays)
    jax.block_until_ready(result)


def our_functions(product: Product) -> dict[str, Callable[..., jax.Array]]:
    """Kind -> a function of x, weight and gradient."""

    def apply(x: jax.Array, weight: jax.Array) -> jax.Array:
        if product.is_over_tokens:
            return over_tokens(weight, x)
        return over_channels(x, weight)

    def forward(x: jax.Array, weight: jax.Array, gradient: jax.Array) -> jax.Array:
        return apply(x, weight)

    def gradient_of_input(x: jax.Array, weight: jax.Array, gradient: jax.Array) -> jax.Array:
        _, pullback = jax.vjp(lambda x: apply(x, weight), x)
        [cotangent] = pullback(gradient)
        return cotangent

    def gradient_of_weight(x: jax.Array, weight: jax.Array, gradient: jax.Array) -> jax.Array:
        _, pullback = jax.vjp(lambda weight: apply(x, weight), weight)
        [cotangent] = pullback(gradient)
        return cotangent

    functions = (forward, gradient_of_input, gradient_of_weight)
    return dict(zip(KINDS, functions, strict=True))


def torch_products(batch: int) -> dict[str, Callable[[], None]]:
    """Name -> a call of a product as torch's linear layers and their gradients have it."""
    torch = import_beside_torch("torch")
    calls = {}
    for number, product in enumerate(PRODUCTS):
        arrays = {}
        for name, array in product.arrays(batch).items():
            arrays[name] = torch.from_numpy(array)
        for kind, function in torch_functions(product).items():
            calls[_name(number, kind)] = functools.partial(_run_torch, function, arrays)
    return calls


def _run_torch(function: Callable[..., Any], arrays: dict[str, Any]) -> None:
    for _ in range(CALLS):
        function(**arrays)


def torch_functions(product: Product) -> dict[str, Callable[..., Any]]:
    """Kind -> a function of x, weight and gradient."""
    if product.is_over_tokens:
        functions = (
            lambda x, weight, gradient: weight @ x,
            lambda x, weight, gradient: weight.T @ gradient,
            lambda x, weight, gradient: _rows(gradient).T @ _rows(x),
        )
    else:
        functions = (
            lambda x, weight, gradient: x @ weight,
            lambda x, weight, gradient: gradient @ weight.T,
            lambda x, weight, gradient: x.flatten(0, 1).T @ gradient.flatten(0, 1),
        )
    return dict(zip(KINDS, functions, strict=True))


def _rows(x: Any) -> Any:
    """[batch, tokens, channels] as [batch channels, tokens], a copy."""
    return x.transpose(1, 2).flatten(0, 1)
