"""Slow, obvious numpy versions of the models' mathematics, in float64, and the tools that the model tests share.

Activations here are one sample's, [tokens, channels]; parameters are nested dicts of arrays as `params_of` gives them.
"""

import functools
import math

import jax
import numpy as np
from flax import nnx

from gmlp_flax.models.spec import EncoderSpec


def in_float64(test):
    """Decorates a test that needs 64-bit numbers: jax_enable_x64 is on inside it and restored afterwards."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        with jax.enable_x64(True):
            return test(*args, **kwargs)

    return run


def normal(seed, *shape):
    """Normal numbers in float64."""
    return np.random.default_rng(seed).normal(size=shape)


def small_spec(**fields):
    """A tiny float64 encoder that keeps everything for its backward pass, with some fields changed."""
    sizes = {"layers": 3, "length": 5, "d_model": 6, "d_ffn": 8}
    return EncoderSpec(**sizes | {"dtype": "float64", "remat": "none"} | fields)


def randomized(make, seed=0, std=0.5):
    """The module that `make` makes, with every parameter a normal number, so that no bias is 0 and no scale 1."""
    random = np.random.default_rng(seed)
    module = nnx.eval_shape(make)
    state = nnx.state(module, nnx.Param)
    nnx.update(module, jax.tree.map(lambda p: jax.numpy.asarray(random.normal(0, std, p.shape), p.dtype), state))
    return module


def params_of(module):
    """Its parameters as a nested dict of numpy arrays."""
    return jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(module, nnx.Param)))


def function_of(module, method="__call__"):
    """Its state and a pure function (state, *inputs) that calls it, for gradients and traces."""
    definition, state = nnx.split(module)
    return state, lambda state, *inputs: getattr(nnx.merge(definition, state), method)(*inputs)


def quick_jit(function):
    """Compiled without optimisation of the machine code: half the time, and the arrays here are tiny."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def equations(jaxpr):
    """Every equation of a program at any depth; of a product's branches for platforms, the default one's."""
    for equation in jaxpr.eqns:
        yield equation
        params = equation.params
        inner = params["branches"][-1:] if equation.primitive.name == "cond" else list(params.values())
        for value in jax.tree.leaves(inner, is_leaf=lambda value: hasattr(value, "eqns")):
            if hasattr(value, "eqns"):
                yield from equations(value)


def program(function, *args):
    """All equations of a traced function."""
    return list(equations(jax.make_jaxpr(function)(*args)))


def count(name, function, *args):
    """How often a primitive occurs in a traced function; a scanned body counts once."""
    return sum(equation.primitive.name == name for equation in program(function, *args))


def largest_array(function, *args):
    """Most elements of any array that a traced function makes."""
    return max(math.prod(out.aval.shape) for equation in program(function, *args) for out in equation.outvars)


def toeplitz_matrix(taps):
    """W[i, j] = taps[n - 1 + j - i], entry by entry."""
    n = (len(taps) + 1) // 2
    return np.array([[taps[n - 1 + j - i] for j in range(n)] for i in range(n)])


def layer_norm(p, x, eps=1e-6):
    """Each token's channels to mean 0 and variance 1, then scale and bias."""
    rows = [(row - row.mean()) / math.sqrt(((row - row.mean()) ** 2).mean() + eps) for row in np.asarray(x, np.float64)]
    return np.stack(rows) * p["scale"] + p["bias"]


def gelu(x):
    """x Phi(x) with the standard library's erf."""
    return np.vectorize(lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))))(np.asarray(x, np.float64))


def gelu_tanh(x):
    """The tanh approximation, as its authors print it."""
    x = np.asarray(x, np.float64)
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def linear(p, x):
    """Each token's vector times the kernel, plus the bias."""
    return np.stack([row @ p["kernel"] + p["bias"] for row in x])


def spatial(p, z):
    """f(Z) = W Z + b, token by token; W dense or from taps, cropped to the tokens given."""
    tokens = len(z)
    if "weight" in p:
        weight = p["weight"]
    else:
        n = (len(p["taps"]) + 1) // 2
        weight = toeplitz_matrix(p["taps"])[:tokens, :tokens] if n > tokens else toeplitz_matrix(p["taps"])
    return np.stack([sum(weight[i, j] * z[j] for j in range(tokens)) + p["bias"][i] for i in range(tokens)])


def gate(p, z, kind, attention=0):
    """The four gates of Table 3, tiny attention added to f(Z)."""
    passed, gated = np.split(z, 2, axis=1) if kind == "split" else (z, z)
    f = spatial(p["spatial"], layer_norm(p["norm"], gated)) + attention
    return {"linear": f, "additive": passed + f, "multiplicative": passed * f, "split": passed * f}[kind]


def tiny_attention(p, x):
    """Figure 6, one query at a time."""
    q, k, v = np.split(linear(p["qkv"], x), 3, axis=1)
    mixed = []
    for query in q:
        scores = np.array([query @ key / math.sqrt(len(query)) for key in k])
        weights = np.exp(scores - scores.max())
        mixed.append(sum(w * value for w, value in zip(weights / weights.sum(), v, strict=True)))
    return linear(p["out"], np.stack(mixed))


def gmlp_block(p, x, kind="split"):
    """Figure 1, and Figure 6 where there are parameters of an attention."""
    normed = layer_norm(p["norm"], x)
    attention = tiny_attention(p["attention"], normed) if "attention" in p else 0
    return x + linear(p["proj_out"], gate(p["gate"], gelu(linear(p["proj_in"], normed)), kind, attention))


def encoder(p, x):
    """The blocks one after another, each with its slice of the stacked parameters, and the final norm."""
    for layer in range(len(p["blocks"]["norm"]["scale"])):
        x = gmlp_block(jax.tree.map(lambda leaf, layer=layer: leaf[layer], p["blocks"]), x)
    return layer_norm(p["norm"], x)
