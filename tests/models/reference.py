"""Slow, obvious numpy versions of the models' mathematics, in float64, and the tools that the model
tests share.

Activations here are one sample's, [tokens, channels]; parameters are nested dicts of arrays as
`params_of` gives them.
"""

import functools
import math

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

    nnx.update(module, jax.tree.map(drawn, state))
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
    assert jax.eval_shape(call, state, *inputs).dtype == "float32"
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
        is_reached = np.abs(leaf).max() > least
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
    n = (len(taps) + 1) // 2
    matrix = np.zeros((n, n), np.asarray(taps).dtype)
    for i, j in np.ndindex(n, n):
        matrix[i, j] = taps[n - 1 + j - i]
    return matrix


def layer_norm(p, x, eps=1e-6):
    """Each token's channels to mean 0 and variance 1, then scale and bias."""
    rows = []
    for row in np.asarray(x, np.float64):
        centred = row - row.mean()
        variance = (centred**2).mean()
        rows.append(centred / math.sqrt(variance + eps))
    return np.stack(rows) * p["scale"] + p["bias"]


def gelu(x):
    """x Phi(x) with the standard library's erf."""
    x = np.asarray(x, np.float64)
    phi = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        error_function = math.erf(x[index] / math.sqrt(2))
        phi[index] = 0.5 * (1 + error_function)
    return x * phi


def gelu_tanh(x):
    """The tanh approximation, as its authors print it."""
    x = np.asarray(x, np.float64)
    cubic = x + 0.044715 * x**3
    factor = math.sqrt(2 / math.pi)
    return 0.5 * x * (1 + np.tanh(factor * cubic))


def linear(p, x):
    """Each token's vector times the kernel, plus the bias."""
    kernel = p["kernel"]
    bias = p["bias"]
    rows = [row @ kernel + bias for row in x]
    return np.stack(rows)


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
    return mixed + bias[:tokens, None]


def depthwise(kernel, x, before):
    """Output by output, each entry of a kernel that meets a token."""
    tokens = len(x)
    y = np.zeros_like(x)
    for i, j in np.ndindex(tokens, len(kernel)):
        source = i + j - before
        if 0 <= source < tokens:
            y[i] += kernel[j] * x[source]
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
    return linear(p["out"], attended(q, k, v))


def t5_bucket(offset, count, causal=False):
    """The bucket of one offset (key - query) out to 128, its logarithms compared as powers of
    integers; of a causal model, in which all buckets serve offsets up to 0."""
    half = count if causal else count // 2
    exact = half // 2
    side = half if offset > 0 else 0
    distance = abs(offset)
    if distance < exact:
        return side + distance
    # floor(log(distance / exact) / log(128 / exact) * steps) is the largest k that holds here.
    steps = half - exact
    far = max(k for k in range(steps + 1) if distance**steps * exact**k >= exact**steps * 128**k)
    return side + min(exact + far, half - 1)


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
    size = width // heads
    projected = linear(p["proj_in"], x)
    has_content = projected.shape[1] == 3 * width
    v = projected[:, -width:]
    bias = np.zeros((heads, tokens, tokens))
    if "relative" in p:
        bias = relative_bias(p["relative"], tokens, length, count)
    mixed = np.zeros((tokens, width))
    for head in range(heads):
        channels = slice(head * size, (head + 1) * size)
        for i in range(tokens):
            scores = bias[head, i]
            if has_content:
                q = projected[:, :width]
                k = projected[:, width : 2 * width]
                scores = scores + dot_products(q[i, channels], k[:, channels])
            mixed[i, channels] = softmax_mix(scores, v[:, channels])
    return linear(p["out"], mixed)


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
        columns.append(second["weight"] @ hidden + second["bias"])
    return np.stack(columns, axis=1)


def transformer_block(p, x, heads, length, count=0):
    """Attention, then the MLP, each of the normalized and added."""
    normed = layer_norm(p["attention_norm"], x)
    x = x + multi_head_attention(p["attention"], normed, heads, length, count)
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
        columns.append(scale * channel + bias)
    return np.stack(columns, axis=1)


def resmlp_block(p, x):
    """One matrix across tokens, channel by channel, then the MLP; no statistics, and each branch
    scaled."""
    token_linear = p["token_linear"]
    weight = token_linear["weight"]
    bias = token_linear["bias"]
    mixed = []
    for channel in affine(p["token_affine"], x).T:
        mixed.append(weight @ channel + bias)
    x = x + np.stack(mixed, axis=1) * p["token_scale"]["scale"]
    branch = channel_mlp(p["mlp"], affine(p["mlp_affine"], x))
    return x + branch * p["mlp_scale"]["scale"]


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
    z = gelu(linear(p["proj_in"], normed))
    gated = gate(p["gate"], z, kind, attention)
    return x + linear(p["proj_out"], gated)


def fourier(x):
    """The real part of the 2-D DFT, sum by sum."""
    n, d = x.shape
    transformed = np.zeros((n, d))
    token = np.arange(n)[:, None]
    channel = np.arange(d)
    for k, c in np.ndindex(n, d):
        turns = token * k / n + channel * c / d
        terms = x * np.cos(2 * math.pi * turns)
        transformed[k, c] = terms.sum()
    return transformed


def fnet_block(p, x, norm="post", eps=1e-12, heads=3):
    """The transform, or attention if there are parameters of one, then the MLP: with norms after
    sums or before."""

    def mix(x):
        if "attention" in p:
            return multi_head_attention(p["attention"], x, heads, len(x))
        if norm == "pre":
            return fourier(x) / math.sqrt(x.size)
        return fourier(x)

    if norm == "pre":
        x = x + mix(layer_norm(p["mixing_norm"], x, eps))
        return add_mlp(p, x, eps)
    x = layer_norm(p["mixing_norm"], x + mix(x), eps)
    return layer_norm(p["mlp_norm"], x + channel_mlp(p["mlp"], x), eps)


def by_head(p, hidden):
    """A linear layer for each head on its share of the channels: [heads][tokens, out]."""
    shares = np.split(hidden, len(p["weight"]), axis=1)
    outputs = []
    for share, weight, bias in zip(shares, p["weight"], p["bias"], strict=True):
        rows = [row @ weight + bias for row in share]
        outputs.append(np.stack(rows))
    return outputs


def synthesized_logits(p, x, part):
    """One kind of logits: [heads][tokens, tokens]."""
    tokens = len(x)
    if part in ("random", "fixed_random"):
        return [logits[:tokens, :tokens] for logits in p["logits"]]
    if part == "factorized_random":
        factors = zip(p["rows"], p["columns"], strict=True)
        return [rows[:tokens] @ columns[:tokens].T for rows, columns in factors]
    hidden = linear(p["proj_in"], x)
    if part == "attention":
        return hidden
    hidden = np.maximum(hidden, 0)
    if part == "dense":
        return [logits[:, :tokens] for logits in by_head(p["proj_out"], hidden)]
    first = by_head(p["first"], hidden)
    second = by_head(p["second"], hidden)
    return [products_of_rows(*pair)[:, :tokens] for pair in zip(first, second, strict=True)]


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
    values = np.split(linear(params["values"], normed), heads, axis=1)
    mixed = []
    for head, v in enumerate(values):
        logits = 0
        for part, share in zip(parts, shares, strict=True):
            made = synthesized_logits(params[part], normed, part)
            if part == "attention":
                made = {head: attention_logits(made, head, heads)}
            logits = logits + share * made[head]
        rows = [softmax_mix(row, v) for row in logits]
        mixed.append(np.stack(rows))
    x = x + linear(params["out"], np.concatenate(mixed, axis=1))
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
    mixed = []
    for queries in np.split(linear(params["proj_in"], normed), heads, axis=1):
        weights = np.exp(queries @ params["keys"].T)
        if over == "tokens":
            weights = weights / weights.sum(axis=0)
            totals = 1e-9 + weights.sum(axis=1, keepdims=True)
        else:
            totals = weights.sum(axis=1, keepdims=True)
        mixed.append(weights / totals @ params["values"])
    x = x + linear(params["out"], np.concatenate(mixed, axis=1))
    return add_mlp(p, x)


def softmax(scores):
    """Over one row."""
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def convolution_block(p, x, heads=3, dilation=1):
    """GLU, then output by output and channel by channel, each tap that meets a token."""
    tokens = len(x)
    normed = layer_norm(p["mixing_norm"], x)
    params = p["convolution"]
    projected = linear(params["proj_in"], normed)
    a, b = np.split(projected, 2, axis=1)
    gated = a * sigmoid(b)
    kernel_params = params["kernel"]
    if "proj" in kernel_params:
        logits = linear(kernel_params["proj"], gated)
        logits = logits.reshape(tokens, heads, -1)
    else:
        logits = np.stack([kernel_params["logits"]] * tokens)
    mixed = np.zeros_like(gated)
    size = gated.shape[1] // heads
    width = logits.shape[-1]
    for i, channel in np.ndindex(gated.shape):
        head = channel // size
        kernel = softmax(logits[i, head])
        for j in range(width):
            source = i + dilation * (j - (width - 1) // 2)
            if 0 <= source < tokens:
                mixed[i, channel] += kernel[j] * gated[source, channel]
    x = x + linear(params["out"], mixed)
    return add_mlp(p, x)


def state_space_outputs(p, u):
    """Token by token, the complex states of each channel's space."""
    tokens, channels = u.shape
    spaces = len(p["log_step"])
    channels_of_space = channels // spaces
    outputs = np.zeros_like(u)
    for channel in range(channels):
        space = channel // channels_of_space
        real = np.minimum(p["a_real"][space], -1e-4)
        a = real + 1j * p["a_imag"][space]
        c_real, c_imaginary = p["c"][space].T
        c = c_real + 1j * c_imaginary
        d = p["d"][space]
        step = np.exp(p["log_step"][space])
        decay = np.exp(step * a)
        held = (decay - 1) / a
        state = np.zeros_like(a)
        for token in range(tokens):
            number = u[token, channel]
            state = decay * state + held * number
            read = (c * state).sum()
            outputs[token, channel] = read.real + d * number
    return outputs


def bigs_block(p, x):
    """The two directions one after another, the second on the reversed tokens."""
    normed = layer_norm(p["norm"], x)

    def direction(p, tokens):
        u = gelu(linear(p["proj_in"], tokens))
        return linear(p["proj_out"], state_space_outputs(p["ssm"], u))

    mixed = direction(p["forward"], normed)
    if "backward" in p:
        reversed_ = direction(p["backward"], normed[::-1])
        mixed = mixed * reversed_[::-1]
    gate = gelu(linear(p["mixed"], mixed))
    value = gelu(linear(p["value"], normed))
    return x + linear(p["proj_out"], gate * value)


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
    tokens, size = k.shape
    state = np.zeros((v.shape[1], size))
    outputs = []
    for t in range(tokens):
        key = k[t]
        erase = np.eye(size) - b[t] * np.outer(key, key)
        write = b[t] * np.outer(v[t], key)
        state = a[t] * state @ erase + write
        outputs.append(state @ q[t])
    return np.array(outputs)


def causal_convolution(kernel, x):
    """Tap by tap, over a token and those before it."""
    convolved = np.zeros_like(x)
    for t, lag in np.ndindex(len(x), len(kernel)):
        if lag <= t:
            convolved[t] += kernel[lag] * x[t - lag]
    return convolved


def delta_direction(p, x, qkv, heads):
    """Head by head: [tokens, heads, d]."""
    gates = x @ p["gates"]["kernel"]
    decay_logits, write_logits = np.split(gates, 2, axis=1)
    steps = softplus(decay_logits + p["dt_bias"])
    rates = np.exp(p["a_log"])
    a = np.exp(-rates * steps)
    b = sigmoid(write_logits)
    convolved = silu(causal_convolution(p["convolution"]["kernel"], qkv))
    channels = qkv.shape[1] // heads  # of a head's query, key and value
    size = (channels - p["value_size"]) // 2
    all_q, all_k, all_v = np.split(convolved, [size * heads, 2 * size * heads], axis=1)
    mixed = []
    for head in range(heads):
        q = np.split(all_q, heads, axis=1)[head]
        k = np.split(all_k, heads, axis=1)[head]
        v = np.split(all_v, heads, axis=1)[head]
        scaled_q = unit(q) / math.sqrt(size)
        outputs = delta_rule(scaled_q, unit(k), v, a[:, head], b[:, head])
        mixed.append(outputs)
    return np.stack(mixed, axis=1)


def delta_block(p, x, heads=3):
    """The passes one after another, the second on the reversed tokens, if there are parameters of
    it."""
    normed = layer_norm(p["mixing_norm"], x)
    params = p["delta"]
    qkv = normed @ params["proj_in"]["kernel"]
    scale = params["norm_scale"]
    size = {"value_size": len(scale)}
    mixed = delta_direction(params["forward"] | size, normed, qkv, heads)
    if "backward" in params:
        reversed_ = delta_direction(params["backward"] | size, normed[::-1], qkv[::-1], heads)
        mixed = mixed + reversed_[::-1]
    mean_square = (mixed**2).mean(-1, keepdims=True)
    scaled = mixed / np.sqrt(mean_square + 1e-6) * scale
    gate = silu(normed @ params["gate"]["kernel"])
    gated = scaled.reshape(gate.shape) * gate
    x = x + gated @ params["out"]["kernel"]
    return add_mlp(p, x)


def implicit_filter(p, tokens, length):
    """[tokens, channels], distance by distance: a network of sines of features of the distance,
    times a window that falls exponentially."""
    last = p["last"]["weight"]
    features = len(p["first"]["weight"])
    _, channels = last.shape
    bands = (features - 1) // 2
    frequencies = np.linspace(1e-4, bands - 1, bands)
    fall = math.log(100)
    rates = np.linspace(fall / 1.5, fall / 0.3, channels)
    rows = []
    for distance in range(tokens):
        share = distance / max(1, length - 1)
        turns = distance / length * frequencies
        wave = np.exp(-2j * math.pi * turns)
        hidden = np.concatenate([[share], wave.real, wave.imag])
        for name in ("first", "second", "third"):
            layer = p[name]
            product = hidden @ layer["weight"] + layer["bias"]
            hidden = np.sin(p["frequencies"] * product)
        window = np.exp(-share * rates)
        rows.append(hidden @ last * window)
    return np.stack(rows)


def long_conv_block(p, x, length):
    """Output by output, over all tokens, or with one filter over the earlier ones; then the MLP."""
    tokens = len(x)
    params = p["convolution"]
    normed = layer_norm(p["mixing_norm"], x)
    projected = linear(params["proj_in"], normed)
    short = depthwise(params["short"]["taps"], projected, 2) + params["short"]["bias"]
    last_gate, first_gate, values = np.split(short, 3, axis=1)
    gated = first_gate * values
    past = implicit_filter(params["past"], tokens, length)
    future = np.zeros_like(past)
    if "future" in params:
        future = implicit_filter(params["future"], tokens, length)
    mixed = params["skip"] * gated
    for i, j in np.ndindex(tokens, tokens):
        if j <= i:
            mixed[i] += past[i - j] * gated[j]
        else:
            mixed[i] += future[j - i - 1] * gated[j]
    x = x + linear(params["out"], last_gate * mixed)
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
        x = block(layer_of(blocks, layer), x)
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
    projected = x @ p["proj"]["kernel"]
    return short_convolution(p["convolution"], projected)


def state_space(steps, rate, b, c, v):
    """Token by token: what a model with one decay reads from its state, before it adds the
    token."""
    channels = v.shape[1]
    state = np.zeros((b.shape[1], channels))
    read = np.zeros(channels)
    outputs = []
    for step, b_i, c_i, v_i in zip(steps, b, c, v, strict=True):
        outputs.append(read)
        decay = math.exp(-rate * step)
        state = decay * state + step * np.outer(b_i, v_i)
        read = c_i @ state
    return np.stack(outputs)


def quasiseparable(p, x, v, heads, groups):
    """Both directions head by head, and the free diagonal."""
    tokens = len(x)
    if "steps" in p:
        states = silu(convolved_features(p["features"], x))
        parts = np.split(states, 4 * groups, axis=1)
        steps_of_directions = np.split(x @ p["steps"]["kernel"], 2, axis=1)
        diagonal = p["skip"] + v @ p["skip_proj"]["kernel"]
    else:
        parts = []
        for b, c in zip(p["b"], p["c"], strict=True):
            parts += [part[:tokens] for part in (*b, *c)]
        steps_of_directions = [np.zeros((tokens, heads))] * 2
        diagonal = np.tile(p["skip"], (tokens, 1))
    mixed = []
    for head, v_head in enumerate(np.split(v, heads, axis=1)):
        group = head * groups // heads
        rate = math.exp(p["log_rates"][head])
        total = diagonal[:, head : head + 1] * v_head
        for direction in range(2):
            first_of_direction = 2 * groups * direction
            b = parts[first_of_direction + group]
            c = parts[first_of_direction + groups + group]
            step_logits = steps_of_directions[direction][:, head]
            steps = softplus(step_logits + p["step_bias"][head])
            order = slice(None, None, -1 if direction else 1)
            read = state_space(steps[order], rate, b[order], c[order], v_head[order])
            total = total + read[order]
        mixed.append(total)
    return np.concatenate(mixed, axis=1)


def matrix_mixed(p, x, v, kind, heads, length):
    """Another structure, entry by entry, and the identity."""
    tokens = len(x)
    computed = None
    if "features" in p:
        computed = convolved_features(p["features"], x)
        if kind != "attention":
            computed = silu(computed)
    mixed = []
    for head, v_head in enumerate(np.split(v, heads, axis=1)):
        if kind == "dense":
            matrix = p["weight"][head, :tokens, :tokens] / math.sqrt(length)
        elif kind == "toeplitz":
            matrix = matrix_of_offsets(p, computed, head, heads, length, tokens)
        else:
            if computed is None:
                q = p["queries"][head, :tokens]
                k = p["keys"][head, :tokens]
            else:
                parts = np.split(computed, 2 * heads, axis=1)
                q = parts[head]
                k = parts[heads + head]
            matrix = matrix_of_products(q, k, kind, length)
        mixed.append((matrix + np.eye(tokens)) @ v_head)
    return np.concatenate(mixed, axis=1)


def matrix_of_offsets(p, computed, head, heads, length, tokens):
    """A head's Toeplitz matrix: from taps, or from features of the distance, first those to the
    left."""
    matrix = np.zeros((tokens, tokens))
    for i, j in np.ndindex(tokens, tokens):
        if computed is None:
            weight = p["taps"][head, length - 1 + j - i]
        elif j > i:
            weight = computed[j - i, heads + head]
        else:
            weight = computed[i - j, head]
        matrix[i, j] = weight / (2 * math.sqrt(length))
    return matrix


def matrix_of_products(q, k, kind, length):
    """The products of queries and keys, as they are or, of attention, their softmax."""
    scale = q.shape[1] * (length if kind == "low_rank" else 1)
    matrix = q @ k.T / math.sqrt(scale)
    if kind == "attention":
        return np.stack([softmax(row) for row in matrix])
    return matrix


def hydra_block(p, x, kind, heads=3, groups=1, length=5):
    """A convolution, a matrix for each head, a norm and a gate; then the MLP."""
    normed = layer_norm(p["mixing_norm"], x)
    params = p["hydra"]
    values = normed @ params["values"]["kernel"]
    v = silu(short_convolution(params["convolution"], values))
    matrix = params["matrix"]
    if kind == "quasiseparable":
        mixed = quasiseparable(matrix, normed, v, heads, groups)
    else:
        mixed = matrix_mixed(matrix, normed, v, kind, heads, length)
    mean_square = (mixed**2).mean(axis=1, keepdims=True)
    scaled = mixed / np.sqrt(mean_square + 1e-5) * params["norm_scale"]
    gate = silu(normed @ params["gate"]["kernel"])
    gated = scaled * gate
    x = x + gated @ params["out"]["kernel"]
    return add_mlp(p, x)
