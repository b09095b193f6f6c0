"""Slow, obvious numpy versions of the models' mathematics, in float64, and the tools that the model
tests share.

Activations here are one sample's, [tokens, channels]; parameters are nested dicts of arrays as
`params_of` gives them.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from gmlp_flax.checkpoints.pytree import leaves_by_path
from gmlp_flax.models.blocks import BLOCKS
from gmlp_flax.options import options_of


def in_float64(test):
    """Decorates a test that needs 64-bit numbers: jax_enable_x64 is on inside it and restored
    afterwards."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        with jax.enable_x64(True):
            return test(*args, **kwargs)

    return run


def normal(seed, *shape):
    """Normal numbers in float64."""
    return np.random.default_rng(seed).normal(size=shape)


def small_spec(**fields):
    """A tiny float64 encoder that keeps everything for its backward pass, with some options
    changed.

    Its block is the one named by `block`, else the first that has all these options.
    """
    options = dict(fields)
    length = options.pop("length", 5)
    name = options.pop("block", "")
    block = BLOCKS[name] if name else first_block_with(options)
    sizes = {"layers": 3, "d_model": 6, "d_ffn": 8, "dtype": "float64", "remat": "none"}
    if "heads" in options_of(block.Spec):
        sizes["heads"] = 3
    return block.spec(length=length, **sizes | options)


def randomized(make, seed=0, std=0.5):
    """The module that `make` makes, with every parameter a normal number, so that no bias is 0 and
    no scale 1."""
    random = np.random.default_rng(seed)
    module = nnx.eval_shape(make)
    state = nnx.state(module, nnx.Param)

    def drawn(parameter):
        numbers = random.normal(0, std, parameter.shape)
        return jax.numpy.asarray(numbers, parameter.dtype)

    drawn_state = jax.tree.map(drawn, state)
    nnx.update(module, drawn_state)
    return module


def params_of(module):
    """Its parameters as a nested dict of numpy arrays."""
    state = nnx.state(module, nnx.Param)
    return jax.tree.map(np.asarray, nnx.to_pure_dict(state))


def first_block_with(options):
    """The first block that has all these options."""
    for block in BLOCKS.values():
        if set(options) <= set(options_of(block.Spec)):
            return block
    raise ValueError(f"no block has all of {sorted(options)}")


def by_example(function, params, batch):
    """The outputs of a reference for a batch, one example at a time."""
    outputs = [function(params, example) for example in batch]
    return np.stack(outputs)


def function_of(module, method="__call__"):
    """Its state and a pure function (state, *inputs) that calls it, for gradients and traces."""
    definition, state = nnx.split(module)

    def call(state, *inputs):
        bound = getattr(nnx.merge(definition, state), method)
        return bound(*inputs)

    return state, call


def quick_jit(function, **options):
    """Compiled without optimization of the machine code: half the time, and the arrays here are
    tiny."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0}, **options)


def equations(jaxpr):
    """Every equation of a program at any depth; of a product's branches for platforms, the default
    one's."""
    for equation in jaxpr.eqns:
        yield equation
        inner = list(equation.params.values())
        if equation.primitive.name == "cond":
            inner = equation.params["branches"][-1:]
        for value in jax.tree.leaves(inner, is_leaf=is_jaxpr):
            if is_jaxpr(value):
                yield from equations(value)


def is_jaxpr(value):
    """Whether a parameter of an equation is a program."""
    return hasattr(value, "eqns")


def program(function, *args):
    """All equations of a traced function."""
    return list(equations(jax.make_jaxpr(function)(*args)))


def count(name, function, *args):
    """How often a primitive occurs in a traced function; a scanned body counts once."""
    names = [equation.primitive.name for equation in program(function, *args)]
    return names.count(name)


def assert_last_product_alone_is_precise(module, *inputs):
    """Logits of a bfloat16 model are float32 and not rounded before: the last product gives
    float32, all others bfloat16. Of the program, since a compiler may leave out roundings."""
    state, call = function_of(module)
    logits = jax.eval_shape(call, state, *inputs)
    assert logits.dtype == "float32"
    types = []
    for equation in program(call, state, *inputs):
        if equation.primitive.name == "dot_general":
            [product] = equation.outvars
            types.append(str(product.aval.dtype))
    *others, last = types
    assert set(others) <= {"bfloat16"}
    assert last == "float32"


def assert_gradient_reaches_every_parameter(gradient, least=0, without=()):
    """All are finite, and more than `least` somewhere, but for the paths `without` effect."""
    for path, leaf in leaves_by_path(gradient).items():
        assert np.isfinite(leaf).all(), path
        largest = np.abs(leaf).max()
        is_reached = largest > least
        assert is_reached == (path not in without), path


def largest_array(function, *args):
    """Most elements of any array that a traced function makes."""
    sizes = []
    for equation in program(function, *args):
        for out in equation.outvars:
            size = math.prod(out.aval.shape)
            sizes.append(size)
    return max(sizes)


def toeplitz_matrix(taps):
    """W[i, j] = taps[n - 1 + j - i], entry by entry."""
    taps = np.asarray(taps)
    n = (len(taps) + 1) // 2
    matrix = np.zeros((n, n), taps.dtype)
    for i, j in np.ndindex(n, n):
        offset = j - i
        column = n - 1 + offset
        matrix[i, j] = taps[column]
    return matrix


def layer_norm(p, x, eps=1e-6):
    """Each token's channels to mean 0 and variance 1, then scale and bias."""
    rows = []
    for row in np.asarray(x, np.float64):
        centred = row - row.mean()
        variance = (centred**2).mean()
        deviation = math.sqrt(variance + eps)
        normalized = centred / deviation
        rows.append(normalized)
    normalized_rows = np.stack(rows)
    scaled = normalized_rows * p["scale"]
    return scaled + p["bias"]


def rms_norm(scale, x, eps):
    """Each token's channels over their root mean square, then the scale."""
    mean_square = (x**2).mean(axis=-1, keepdims=True)
    root_mean_square = np.sqrt(mean_square + eps)
    return x / root_mean_square * scale


def gelu(x):
    """x Phi(x) with the standard library's erf."""
    x = np.asarray(x, np.float64)
    phi = np.zeros_like(x)
    for index, number in np.ndenumerate(x):
        error_function = math.erf(number / math.sqrt(2))
        phi[index] = 0.5 * (1 + error_function)
    return x * phi


def gelu_tanh(x):
    """The tanh approximation, as its authors print it."""
    x = np.asarray(x, np.float64)
    cubic = x + 0.044715 * x**3
    factor = math.sqrt(2 / math.pi)
    tanh = np.tanh(factor * cubic)
    return 0.5 * x * (1 + tanh)


def linear(p, x):
    """Each token's vector times the kernel, plus the bias."""
    kernel = p["kernel"]
    bias = p["bias"]
    rows = [row @ kernel + bias for row in x]
    return np.stack(rows)


def without_bias(p, x):
    """Each token's vector times the kernel."""
    return x @ p["kernel"]


def spatial(p, z):
    """f(Z) = W Z + b, token by token; W dense or from taps, cropped to the tokens given, or a
    centered kernel for each channel."""
    tokens = len(z)
    bias = p["bias"]
    taps = p.get("taps")
    if np.ndim(taps) == 2:
        before = (len(taps) - 1) // 2
        return depthwise(taps, z, before) + bias
    weight = p["weight"] if taps is None else toeplitz_matrix(taps)
    mixed = np.zeros(z.shape)
    for i, j in np.ndindex(tokens, tokens):
        mixed[i] += weight[i, j] * z[j]
    column = bias[:tokens, None]
    return mixed + column


def depthwise(kernel, x, before):
    """Output by output, each entry of a kernel that meets a token."""
    tokens = len(x)
    y = np.zeros_like(x)
    for i, j in np.ndindex(tokens, len(kernel)):
        source = i + j - before
        if 0 <= source < tokens:
            product = kernel[j] * x[source]
            y[i] += product
    return y


def gate(p, z, kind, attention=0):
    """The four gates of Table 3, tiny attention added to f(Z)."""
    passed = z
    gated = z
    if kind == "split":
        passed, gated = np.split(z, 2, axis=1)
    normed = layer_norm(p["norm"], gated)
    f = spatial(p["spatial"], normed) + attention
    if kind == "linear":
        return f
    if kind == "additive":
        return passed + f
    return passed * f


def softmax_mix(scores, v):
    """The values, weighted by the softmax of one query's scores."""
    mixed = 0
    for weight, value in zip(softmax(scores), v, strict=True):
        mixed = mixed + weight * value
    return mixed


def dot_products(query, keys):
    """One query's scores."""
    scale = math.sqrt(len(query))
    scores = [query @ key / scale for key in keys]
    return np.array(scores)


def attended(q, k, v):
    """Softmax attention, one query at a time."""
    rows = [softmax_mix(dot_products(query, k), v) for query in q]
    return np.stack(rows)


def tiny_attention(p, x):
    """Figure 6, one query at a time."""
    projected = linear(p["qkv"], x)
    q, k, v = np.split(projected, 3, axis=1)
    mixed = attended(q, k, v)
    return linear(p["out"], mixed)


def t5_bucket(offset, count, causal=False):
    """The bucket of one offset (key - query) out to 128, its logarithms compared as powers of
    integers; of a causal model, in which all buckets serve offsets up to 0."""
    half = count if causal else count // 2
    exact = half // 2
    side = half if offset > 0 else 0
    distance = abs(offset)
    if distance < exact:
        return side + distance
    # floor(log(distance / exact) / log(128 / exact) * steps) is the largest k for which
    # (distance / exact) ** steps >= (128 / exact) ** k.
    steps = half - exact
    far = 0
    for k in range(steps + 1):
        power = distance**steps
        reached = power * exact**k
        needed = exact**steps * 128**k
        if reached >= needed:
            far = k
    bucket = min(exact + far, half - 1)
    return side + bucket


def relative_bias(p, tokens, length, count=0):
    """Each head's [tokens, tokens], entry by entry: from a row of 2 length - 1 offsets, or from
    T5's buckets."""
    bias = p["bias"]
    heads = len(bias)
    logits = np.zeros((heads, tokens, tokens))
    for head, i, j in np.ndindex(logits.shape):
        offset = j - i
        column = t5_bucket(offset, count) if count else length - 1 + offset
        logits[head, i, j] = bias[head][column]
    return logits


def multi_head_attention(p, x, heads, length, count=0):
    """Head by head and query by query; without content, where only values are projected."""
    tokens, width = x.shape
    projected = linear(p["proj_in"], x)
    projected_width = projected.shape[1]
    has_content = projected_width == 3 * width
    bias = np.zeros((heads, tokens, tokens))
    if "relative" in p:
        bias = relative_bias(p["relative"], tokens, length, count)
    values_part = projected[:, -width:]
    values = np.split(values_part, heads, axis=1)
    mixed = []
    for head, v in enumerate(values):
        logits = bias[head]
        if has_content:
            queries_and_keys = projected[:, : 2 * width]
            content = attention_logits(queries_and_keys, head, heads)
            logits = logits + content
        rows = [softmax_mix(scores, v) for scores in logits]
        mixed.append(np.stack(rows))
    joined = np.concatenate(mixed, axis=1)
    return linear(p["out"], joined)


def channel_mlp(p, x, activation=gelu):
    """Each token's vector through two layers."""
    hidden = activation(linear(p["proj_in"], x))
    return linear(p["proj_out"], hidden)


def token_mlp(p, x, activation=gelu):
    """Each channel's vector through two layers."""
    first = p["proj_in"]
    second = p["proj_out"]
    columns = []
    for channel in x.T:
        hidden = activation(first["weight"] @ channel + first["bias"])
        column = second["weight"] @ hidden + second["bias"]
        columns.append(column)
    return np.stack(columns, axis=1)


def transformer_block(p, x, heads, length, count=0):
    """Attention, then the MLP, each of the normalized and added."""
    normed = layer_norm(p["attention_norm"], x)
    branch = multi_head_attention(p["attention"], normed, heads, length, count)
    x = x + branch
    return add_mlp(p, x)


def add_mlp(p, x, eps=1e-6):
    """The MLP of the normalized, added: the second half of most blocks."""
    normed = layer_norm(p["mlp_norm"], x, eps)
    return x + channel_mlp(p["mlp"], normed)


def post_norm_block(p, x, heads=2):
    """BERT's: each sum is normalized."""
    tokens = len(x)
    branch = multi_head_attention(p["attention"], x, heads, tokens)
    x = layer_norm(p["attention_norm"], x + branch)
    branch = channel_mlp(p["mlp"], x)
    return layer_norm(p["mlp_norm"], x + branch)


def mixer_block(p, x):
    """Channel by channel across tokens, then token by token across channels."""
    normed = layer_norm(p["token_norm"], x)
    x = x + token_mlp(p["token_mlp"], normed)
    return add_mlp(p, x)


def affine(p, x):
    """Each channel times its scale, plus its bias."""
    columns = []
    for channel, scale, bias in zip(x.T, p["scale"], p["bias"], strict=True):
        column = scale * channel + bias
        columns.append(column)
    return np.stack(columns, axis=1)


def resmlp_block(p, x):
    """One matrix across tokens, channel by channel, then the MLP; no statistics, and each branch
    scaled."""
    token_linear = p["token_linear"]
    weight = token_linear["weight"]
    bias = token_linear["bias"]
    columns = []
    for channel in affine(p["token_affine"], x).T:
        columns.append(weight @ channel + bias)
    mixed = np.stack(columns, axis=1)
    scale = p["token_scale"]["scale"]
    x = x + mixed * scale
    rescaled = affine(p["mlp_affine"], x)
    branch = channel_mlp(p["mlp"], rescaled)
    mlp_scale = p["mlp_scale"]["scale"]
    return x + branch * mlp_scale


def feed_forward_block(p, x):
    """The MLP token by token; then, on the transpose, a norm and an MLP channel by channel."""
    x = add_mlp(p, x)
    normed = layer_norm(p["token_norm"], x.T)
    return x + token_mlp(p["token_mlp"], normed.T)


def gmlp_block(p, x, kind="split"):
    """Figure 1, and Figure 6 where there are parameters of an attention."""
    normed = layer_norm(p["norm"], x)
    attention = 0
    if "attention" in p:
        attention = tiny_attention(p["attention"], normed)
    projected = linear(p["proj_in"], normed)
    z = gelu(projected)
    gated = gate(p["gate"], z, kind, attention)
    branch = linear(p["proj_out"], gated)
    return x + branch


def fourier(x):
    """The real part of the 2-D DFT, sum by sum."""
    n, d = x.shape
    transformed = np.zeros((n, d))
    token = np.arange(n)[:, None]
    channel = np.arange(d)
    for k, c in np.ndindex(n, d):
        token_turns = token * k / n
        channel_turns = channel * c / d
        turns = token_turns + channel_turns
        cosines = np.cos(2 * math.pi * turns)
        terms = x * cosines
        transformed[k, c] = terms.sum()
    return transformed


def fnet_block(p, x, norm="post", eps=1e-12, heads=3):
    """The transform, or attention if there are parameters of one, then the MLP: with norms after
    sums or before."""

    def mix(x):
        if "attention" in p:
            return multi_head_attention(p["attention"], x, heads, len(x))
        if norm == "pre":
            scale = math.sqrt(x.size)
            return fourier(x) / scale
        return fourier(x)

    if norm == "pre":
        normed = layer_norm(p["mixing_norm"], x, eps)
        return add_mlp(p, x + mix(normed), eps)
    sums = x + mix(x)
    x = layer_norm(p["mixing_norm"], sums, eps)
    branch = channel_mlp(p["mlp"], x)
    return layer_norm(p["mlp_norm"], x + branch, eps)


def by_head(p, hidden):
    """A linear layer for each head on its share of the channels: [heads][tokens, out]."""
    shares = np.split(hidden, len(p["weight"]), axis=1)
    outputs = []
    parameters = zip(shares, p["weight"], p["bias"], strict=True)
    for share, weight, bias in parameters:
        rows = [row @ weight + bias for row in share]
        outputs.append(np.stack(rows))
    return outputs


def synthesized_logits(p, x, part, heads):
    """One kind of logits: [heads][tokens, tokens]."""
    tokens = len(x)
    if part in ("random", "fixed_random"):
        return p["logits"][:, :tokens, :tokens]
    if part == "factorized_random":
        rows = p["rows"][:, :tokens]
        columns = p["columns"][:, :tokens]
        return rows @ columns.transpose(0, 2, 1)
    hidden = linear(p["proj_in"], x)
    if part == "attention":
        logits = []
        for head in range(heads):
            logits.append(attention_logits(hidden, head, heads))
        return logits
    hidden = np.maximum(hidden, 0)
    if part == "dense":
        outputs = by_head(p["proj_out"], hidden)
        return [logits[:, :tokens] for logits in outputs]
    first = by_head(p["first"], hidden)
    second = by_head(p["second"], hidden)
    logits = []
    for first_factor, second_factor in zip(first, second, strict=True):
        products = products_of_rows(first_factor, second_factor)
        logits.append(products[:, :tokens])
    return logits


def products_of_rows(a, b):
    """Row by row, each number of a with each of b: [rows, a's columns * b's columns]."""
    rows = []
    for row_of_a, row_of_b in zip(a, b, strict=True):
        products = [u * v for u in row_of_a for v in row_of_b]
        rows.append(products)
    return np.array(rows)


def synthesizer_block(p, x, parts, heads=3):
    """Logits part by part, mixed by the softmax of their weights; then head by head and query by
    query."""
    normed = layer_norm(p["mixing_norm"], x)
    params = p["synthesizer"]
    shares = softmax(params["weights"]) if len(parts) > 1 else [1.0]
    logits_of_part = {}
    for part in parts:
        logits_of_part[part] = synthesized_logits(params[part], normed, part, heads)
    projected = linear(params["values"], normed)
    values = np.split(projected, heads, axis=1)
    mixed = []
    for head, v in enumerate(values):
        logits = 0
        for part, share in zip(parts, shares, strict=True):
            part_logits = logits_of_part[part][head]
            logits = logits + share * part_logits
        rows = [softmax_mix(row, v) for row in logits]
        mixed.append(np.stack(rows))
    joined = np.concatenate(mixed, axis=1)
    x = x + linear(params["out"], joined)
    return add_mlp(p, x)


def attention_logits(queries_and_keys, head, heads):
    """The scaled dot products of one head, query by query."""
    by_head = np.split(queries_and_keys, 2 * heads, axis=1)
    queries = by_head[head]
    keys = by_head[heads + head]
    rows = [dot_products(query, keys) for query in queries]
    return np.array(rows)


def external_attention_block(p, x, over="tokens", heads=3):
    """Head by head: weights on the memory, column by column over tokens and then row by row, or row
    by row alone."""
    normed = layer_norm(p["mixing_norm"], x)
    params = p["external"]
    projected = linear(params["proj_in"], normed)
    mixed = []
    queries_of_head = np.split(projected, heads, axis=1)
    for queries in queries_of_head:
        logits = queries @ params["keys"].T
        weights = np.exp(logits)
        if over == "tokens":
            weights = weights / weights.sum(axis=0)
            sums = weights.sum(axis=1, keepdims=True)
            totals = 1e-9 + sums
        else:
            totals = weights.sum(axis=1, keepdims=True)
        normalized = weights / totals
        mixed.append(normalized @ params["values"])
    joined = np.concatenate(mixed, axis=1)
    x = x + linear(params["out"], joined)
    return add_mlp(p, x)


def softmax(scores):
    """Over one row."""
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def convolution_block(p, x, heads=3, dilation=1):
    """GLU, then output by output and channel by channel, each tap that meets a token."""
    normed = layer_norm(p["mixing_norm"], x)
    params = p["convolution"]
    projected = linear(params["proj_in"], normed)
    a, b = np.split(projected, 2, axis=1)
    gated = a * sigmoid(b)
    kernels = softmax_kernels(params["kernel"], gated, heads)
    mixed = convolved_by_head(kernels, gated, dilation)
    branch = linear(params["out"], mixed)
    x = x + branch
    return add_mlp(p, x)


def softmax_kernels(p, x, heads):
    """The kernel of each token and head, the same for all tokens unless it is computed from
    them: [tokens, heads, width]."""
    tokens = len(x)
    if "proj" in p:
        logits = linear(p["proj"], x)
        logits = logits.reshape(tokens, heads, -1)
    else:
        repeated = [p["logits"]] * tokens
        logits = np.stack(repeated)
    kernels = np.zeros_like(logits)
    for token, head in np.ndindex(tokens, heads):
        kernels[token, head] = softmax(logits[token, head])
    return kernels


def convolved_by_head(kernels, x, dilation):
    """Each token and channel with its head's kernel, around the token."""
    tokens, channels = x.shape
    _, heads, width = kernels.shape
    head_size = channels // heads
    center = (width - 1) // 2
    convolved = np.zeros_like(x)
    for token, channel in np.ndindex(tokens, channels):
        head = channel // head_size
        kernel = kernels[token, head]
        for tap, weight in enumerate(kernel):
            distance = tap - center
            source = token + dilation * distance
            if 0 <= source < tokens:
                convolved[token, channel] += weight * x[source, channel]
    return convolved


def state_space_outputs(p, u):
    """Channel by channel, with the modes of its space."""
    _, channels = u.shape
    spaces = len(p["log_step"])
    channels_of_space = channels // spaces
    outputs = []
    for channel in range(channels):
        space = channel // channels_of_space
        numbers = u[:, channel]
        modes = discretized(p, space)
        read = read_modes(modes, numbers)
        skipped = p["d"][space] * numbers
        outputs.append(read + skipped)
    return np.stack(outputs, axis=1)


class Modes(NamedTuple):
    """The complex modes of a space, [modes]: their decay in a step, and the weights of what enters
    the state and of what is read from it."""

    decay: np.ndarray
    write: np.ndarray
    read: np.ndarray


def discretized(p, space):
    """The modes of a space, whose input is held for a step."""
    a_real = np.minimum(p["a_real"][space], -1e-4)
    a_imaginary = p["a_imag"][space]
    a = a_real + 1j * a_imaginary
    log_step = p["log_step"][space]
    step = np.exp(log_step)
    decay = np.exp(step * a)
    write = (decay - 1) / a
    c_real, c_imaginary = p["c"][space].T
    read = c_real + 1j * c_imaginary
    return Modes(decay, write, read)


def read_modes(modes, u):
    """What is read from the states after each token of a channel: [tokens]."""
    state = np.zeros_like(modes.decay)
    outputs = []
    for number in u:
        state = modes.decay * state + modes.write * number
        total = (modes.read * state).sum()
        outputs.append(total.real)
    return np.array(outputs)


def bigs_block(p, x):
    """The two directions one after another, the second on the reversed tokens."""
    normed = layer_norm(p["norm"], x)

    def direction(p, tokens):
        projected = linear(p["proj_in"], tokens)
        u = gelu(projected)
        outputs = state_space_outputs(p["ssm"], u)
        return linear(p["proj_out"], outputs)

    mixed = direction(p["forward"], normed)
    if "backward" in p:
        reversed_ = direction(p["backward"], normed[::-1])
        backward = reversed_[::-1]
        mixed = mixed * backward
    gate = gelu(linear(p["mixed"], mixed))
    value = gelu(linear(p["value"], normed))
    branch = linear(p["proj_out"], gate * value)
    return x + branch


def sigmoid(x):
    """From 0 to 1."""
    return 1 / (1 + np.exp(-x))


def silu(x):
    """x sigmoid(x)."""
    return x * sigmoid(x)


def softplus(x):
    """log(1 + exp(x))."""
    return np.log1p(np.exp(x))


def unit(rows):
    """Rows of length 1."""
    squares = (rows**2).sum(axis=1, keepdims=True)
    return rows / np.sqrt(squares + 1e-6)


def delta_rule(q, k, v, a, b):
    """The recurrence of one head, equation 10 of 2412.06464: [tokens, d]."""
    _, key_size = k.shape
    _, value_size = v.shape
    identity = np.eye(key_size)
    state = np.zeros((value_size, key_size))
    outputs = []
    for query, key, value, decay, rate in zip(q, k, v, a, b, strict=True):
        key_products = np.outer(key, key)
        erase = identity - rate * key_products
        write = rate * np.outer(value, key)
        kept = decay * state @ erase
        state = kept + write
        outputs.append(state @ query)
    return np.array(outputs)


def causal_convolution(kernel, x):
    """Tap by tap, over a token and those before it."""
    convolved = np.zeros_like(x)
    for t, lag in np.ndindex(len(x), len(kernel)):
        source = t - lag
        if source >= 0:
            convolved[t] += kernel[lag] * x[source]
    return convolved


def delta_direction(p, x, qkv, heads, value_size):
    """Head by head: [tokens, heads, d]."""
    gates = without_bias(p["gates"], x)
    decay_logits, write_logits = np.split(gates, 2, axis=1)
    step_logits = decay_logits + p["dt_bias"]
    steps = softplus(step_logits)
    rates = np.exp(p["a_log"])
    a = np.exp(-rates * steps)
    b = sigmoid(write_logits)
    kernel = p["convolution"]["kernel"]
    summed = causal_convolution(kernel, qkv)
    convolved = silu(summed)
    _, channels = qkv.shape
    values_start = channels - heads * value_size
    queries_and_keys = convolved[:, :values_start]
    queries, keys = np.split(queries_and_keys, 2, axis=1)
    q_of_head = np.split(queries, heads, axis=1)
    k_of_head = np.split(keys, heads, axis=1)
    values = convolved[:, values_start:]
    v_of_head = np.split(values, heads, axis=1)
    mixed = []
    for head in range(heads):
        q = unit(q_of_head[head])
        k = unit(k_of_head[head])
        v = v_of_head[head]
        _, key_size = k.shape
        scaled_q = q / math.sqrt(key_size)
        decay = a[:, head]
        rate = b[:, head]
        outputs = delta_rule(scaled_q, k, v, decay, rate)
        mixed.append(outputs)
    return np.stack(mixed, axis=1)


def delta_block(p, x, heads=3):
    """The passes one after another, the second on the reversed tokens, if there are parameters of
    it."""
    normed = layer_norm(p["mixing_norm"], x)
    params = p["delta"]
    qkv = without_bias(params["proj_in"], normed)
    scale = params["norm_scale"]
    value_size = len(scale)
    mixed = delta_direction(params["forward"], normed, qkv, heads, value_size)
    if "backward" in params:
        reversed_x = normed[::-1]
        reversed_qkv = qkv[::-1]
        later = delta_direction(params["backward"], reversed_x, reversed_qkv, heads, value_size)
        in_order = later[::-1]
        mixed = mixed + in_order
    scaled = rms_norm(scale, mixed, 1e-6)
    gate_logits = without_bias(params["gate"], normed)
    gate = silu(gate_logits)
    gated = scaled.reshape(gate.shape) * gate
    x = x + without_bias(params["out"], gated)
    return add_mlp(p, x)


def implicit_filter(p, tokens, length):
    """[tokens, channels], distance by distance: a network of sines of features of the distance,
    times a window that falls exponentially."""
    last = p["last"]["weight"]
    _, channels = last.shape
    fall = math.log(100)
    lowest = fall / 1.5
    highest = fall / 0.3
    rates = np.linspace(lowest, highest, channels)
    first = p["first"]["weight"]
    features = len(first)
    rows = []
    for distance in range(tokens):
        last_distance = max(1, length - 1)
        share = distance / last_distance
        hidden = features_of_distance(distance, length, features)
        for name in ("first", "second", "third"):
            layer = p[name]
            product = hidden @ layer["weight"] + layer["bias"]
            hidden = np.sin(p["frequencies"] * product)
        window = np.exp(-share * rates)
        outputs = hidden @ last
        rows.append(outputs * window)
    return np.stack(rows)


def features_of_distance(distance, length, features):
    """Its share of the length, and cosines and sines: [features]."""
    last_distance = max(1, length - 1)
    share = distance / last_distance
    bands = (features - 1) // 2
    frequencies = np.linspace(1e-4, bands - 1, bands)
    turns = distance / length * frequencies
    wave = np.exp(-2j * math.pi * turns)
    return np.concatenate([[share], wave.real, wave.imag])


def long_conv_block(p, x, length):
    """Output by output, over all tokens, or with one filter over the earlier ones; then the MLP."""
    tokens = len(x)
    params = p["convolution"]
    normed = layer_norm(p["mixing_norm"], x)
    projected = linear(params["proj_in"], normed)
    short = params["short"]
    summed = depthwise(short["taps"], projected, 2)
    convolved = summed + short["bias"]
    last_gate, first_gate, values = np.split(convolved, 3, axis=1)
    gated = first_gate * values
    past = implicit_filter(params["past"], tokens, length)
    future = np.zeros_like(past)
    if "future" in params:
        future = implicit_filter(params["future"], tokens, length)
    mixed = params["skip"] * gated
    for i, j in np.ndindex(tokens, tokens):
        distance = abs(i - j)
        if j <= i:
            mixed[i] += past[distance] * gated[j]
        else:
            mixed[i] += future[distance - 1] * gated[j]
    branch = linear(params["out"], last_gate * mixed)
    x = x + branch
    return add_mlp(p, x)


def layer_of(params, layer):
    """One layer's slice of stacked parameters."""
    return jax.tree.map(lambda leaf: leaf[layer], params)


def encoder(p, x, block=gmlp_block, final_norm=layer_norm):
    """The blocks one after another, each with its slice of the stacked parameters, and the final
    norm."""
    blocks = p["blocks"]
    first, *_ = jax.tree.leaves(blocks)
    layers = len(first)
    for layer in range(layers):
        params = layer_of(blocks, layer)
        x = block(params, x)
    return final_norm(p["norm"], x)


def keys(seed: int, batch: int) -> jax.Array:
    """A random key for each example."""
    key = jax.random.key(seed)
    return jax.random.split(key, batch)


def short_convolution(p, x):
    """Each token's channels: the sum over the filter's entries, around the token."""
    kernel = p["kernel"]
    before = (len(kernel) - 1) // 2
    return depthwise(kernel, x, before) + p["bias"]


def convolved_features(p, x):
    """A projection, then the short convolution."""
    projected = without_bias(p["proj"], x)
    return short_convolution(p["convolution"], projected)


def state_space(steps, rate, b, c, v):
    """Token by token: what a model with one decay reads from its state, before it adds the
    token."""
    channels = v.shape[1]
    state_size = b.shape[1]
    state = np.zeros((state_size, channels))
    read = np.zeros(channels)
    outputs = []
    for step, b_i, c_i, v_i in zip(steps, b, c, v, strict=True):
        outputs.append(read)
        decay = math.exp(-rate * step)
        write = step * np.outer(b_i, v_i)
        state = decay * state + write
        read = c_i @ state
    return np.stack(outputs)


def quasiseparable(p, x, v, heads, groups):
    """Both directions head by head, and the free diagonal."""
    forward, backward = directions_of(p, x, heads, groups)
    tokens = len(x)
    diagonal = np.tile(p["skip"], (tokens, 1))
    if "skip_proj" in p:
        diagonal = diagonal + without_bias(p["skip_proj"], v)
    mixed = []
    v_of_head = np.split(v, heads, axis=1)
    for head, v_head in enumerate(v_of_head):
        skipped = diagonal[:, [head]] * v_head
        before = read_direction(p, forward, head, groups, v_head)
        reversed_v = v_head[::-1]
        after = read_direction(p, backward, head, groups, reversed_v)
        sums = skipped + before + after[::-1]
        mixed.append(sums)
    return np.concatenate(mixed, axis=1)


class Direction(NamedTuple):
    """What is read in a direction, in its order of the tokens: B and C of each group,
    [groups][tokens, state], and the logits of the steps, [tokens, heads]."""

    b: Sequence[np.ndarray]
    c: Sequence[np.ndarray]
    step_logits: np.ndarray


def directions_of(p, x, heads, groups):
    """The forward and the backward direction: computed from tokens, or parameters."""
    tokens = len(x)
    if "steps" in p:
        features = convolved_features(p["features"], x)
        states = silu(features)
        parts = np.split(states, 4 * groups, axis=1)
        forward_b, forward_c, backward_b, backward_c = in_parts_of(groups, parts)
        steps = without_bias(p["steps"], x)
        forward_steps, backward_steps = np.split(steps, 2, axis=1)
    else:
        b = p["b"][:, :, :tokens]
        c = p["c"][:, :, :tokens]
        forward_b, backward_b = b
        forward_c, backward_c = c
        forward_steps = np.zeros((tokens, heads))
        backward_steps = forward_steps
    reversed_b = [b[::-1] for b in backward_b]
    reversed_c = [c[::-1] for c in backward_c]
    forward = Direction(forward_b, forward_c, forward_steps)
    reversed_steps = backward_steps[::-1]
    backward = Direction(reversed_b, reversed_c, reversed_steps)
    return forward, backward


def in_parts_of(size, items):
    """Consecutive parts of a list."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def read_direction(p, direction, head, groups, v):
    """What a head reads from its states before each token: [tokens, channels]."""
    heads = len(p["log_rates"])
    group = head * groups // heads
    log_rate = p["log_rates"][head]
    rate = math.exp(log_rate)
    bias = p["step_bias"][head]
    logits = direction.step_logits[:, head] + bias
    steps = softplus(logits)
    b = direction.b[group]
    c = direction.c[group]
    return state_space(steps, rate, b, c, v)


def matrix_mixed(p, x, v, kind, heads, length):
    """Another structure, entry by entry, and the identity."""
    tokens = len(x)
    computed = None
    if "features" in p:
        computed = convolved_features(p["features"], x)
        if kind != "attention":
            computed = silu(computed)
    identity = np.eye(tokens)
    mixed = []
    v_of_head = np.split(v, heads, axis=1)
    for head, v_head in enumerate(v_of_head):
        if kind == "dense":
            weight = p["weight"][head, :tokens, :tokens]
            matrix = weight / math.sqrt(length)
        elif kind == "toeplitz":
            matrix = matrix_of_offsets(p, computed, head, heads, length, tokens)
        else:
            q, k = query_and_key(p, computed, head, heads, tokens)
            matrix = matrix_of_products(q, k, kind, length)
        with_identity = matrix + identity
        mixed.append(with_identity @ v_head)
    return np.concatenate(mixed, axis=1)


def query_and_key(p, computed, head, heads, tokens):
    """A head's queries and keys, [tokens, size]: computed from tokens, or parameters."""
    if computed is None:
        queries = p["queries"][head]
        keys = p["keys"][head]
        return queries[:tokens], keys[:tokens]
    parts = np.split(computed, 2 * heads, axis=1)
    queries_of_head = parts[:heads]
    keys_of_head = parts[heads:]
    return queries_of_head[head], keys_of_head[head]


def matrix_of_offsets(p, computed, head, heads, length, tokens):
    """A head's Toeplitz matrix: from taps, or from features of the distance, first those to the
    left."""
    matrix = np.zeros((tokens, tokens))
    scale = 2 * math.sqrt(length)
    for i, j in np.ndindex(tokens, tokens):
        offset = j - i
        distance = abs(offset)
        if computed is None:
            weight = p["taps"][head, length - 1 + offset]
        elif offset > 0:
            weight = computed[distance, heads + head]
        else:
            weight = computed[distance, head]
        matrix[i, j] = weight / scale
    return matrix


def matrix_of_products(q, k, kind, length):
    """The products of queries and keys, as they are or, of attention, their softmax."""
    _, variance = q.shape
    if kind == "low_rank":
        variance = variance * length
    matrix = q @ k.T / math.sqrt(variance)
    if kind == "attention":
        return np.stack([softmax(row) for row in matrix])
    return matrix


def hydra_block(p, x, kind, heads=3, groups=1, length=5):
    """A convolution, a matrix for each head, a norm and a gate; then the MLP."""
    normed = layer_norm(p["mixing_norm"], x)
    params = p["hydra"]
    values = without_bias(params["values"], normed)
    convolved = short_convolution(params["convolution"], values)
    v = silu(convolved)
    matrix = params["matrix"]
    if kind == "quasiseparable":
        mixed = quasiseparable(matrix, normed, v, heads, groups)
    else:
        mixed = matrix_mixed(matrix, normed, v, kind, heads, length)
    scaled = rms_norm(params["norm_scale"], mixed, 1e-5)
    gate_logits = without_bias(params["gate"], normed)
    gated = scaled * silu(gate_logits)
    x = x + without_bias(params["out"], gated)
    return add_mlp(p, x)
