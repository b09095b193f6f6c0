"""The options of modern Transformers, against slow references and the Llama of Hugging Face
transformers with the same weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

from gmlp_flax.models import blocks
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.layers import rms_norm
from gmlp_flax.models.text import CausalLM
from tests.models import reference
from tests.models.continuation import assert_same_logits_token_by_token
from tests.models.reference import function_of

LLAMA = {
    "positions": "rotary",
    "norm_type": "rms",
    "mlp": "swiglu",
    "biases": False,
    "attention_bias": False,
}


def transformer(length=16, **options):
    """A spec of two narrow layers."""
    sizes = {"layers": 2, "d_model": 32, "d_ffn": 48, "heads": 4}
    return blocks.find("transformer").spec(length=length, **sizes | options)


def test_rms_norm_divides_by_the_root_mean_square():
    numbers = np.random.default_rng(0).normal(size=(3, 8))
    x = numbers + 2
    scale = np.linspace(0.5, 2, 8)
    expected = reference.rms_norm(scale, x, 1e-6)
    float32_scale = jnp.asarray(scale, jnp.float32)
    y = rms_norm(jnp.asarray(x), float32_scale, 1e-6, jnp.float32)
    assert_allclose(y, expected, rtol=1e-5)


def test_layers_without_biases_have_no_bias_parameter():
    encoder = nnx.eval_shape(lambda: Encoder(transformer(**LLAMA), nnx.Rngs(0)))
    paths = nnx.to_flat_state(nnx.state(encoder)).paths
    names = [path[-1] for path in paths]
    assert "bias" not in names
    kernels_of_attention = 2
    kernels_of_mlp = 3
    norms = 3
    assert len(names) == kernels_of_attention + kernels_of_mlp + norms


def apply_linear(layer, x):
    return x @ layer.kernel[...] + layer.bias[...]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "activation"),
    [
        ("geglu", functools.partial(jax.nn.gelu, approximate=False)),
        ("swiglu", jax.nn.silu),
    ],
    ids=["geglu", "swiglu"],
)
def test_gated_mlps_are_products_of_two_linear_layers(kind, activation):
    spec = transformer(mlp=kind)
    block = spec.block(spec, nnx.Rngs(0))
    mlp = block.mlp
    key = jax.random.key(0)
    x = jax.random.normal(key, (2, 5, 32))
    gate = activation(apply_linear(mlp.gate, x))
    values = apply_linear(mlp.proj_in, x)
    expected = apply_linear(mlp.proj_out, gate * values)
    assert_allclose(mlp(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_normalised_queries_and_keys_bound_the_logits():
    """|q| = |k| = sqrt(d), so that |q k| / sqrt(d) <= sqrt(d)."""
    spec = transformer(qk_norm=True, positions="rotary")
    block = spec.block(spec, nnx.Rngs(0))
    normal = jax.random.normal(jax.random.key(0), (2, 16, 32))
    x = 100 * normal
    scores = block.attention.scores(x)
    largest = float(jnp.abs(scores).max())
    assert 1 < largest <= 8**0.5 + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [7, 16, 40])
def test_rotary_positions_support_every_length(tokens):
    spec = transformer(positions="rotary")
    assert spec.supports_length(tokens)
    encoder = Encoder(spec, nnx.Rngs(0))
    key = jax.random.key(0)
    x = jax.random.normal(key, (1, tokens, 32))
    y = encoder(x)
    assert y.shape == (1, tokens, 32)


@pytest.mark.slow
def test_tokens_read_one_by_one_give_the_logits_of_the_whole_text():
    spec = transformer(causal=True, qk_norm=True, **LLAMA)
    model = CausalLM(spec, 40, nnx.Rngs(0))
    key = jax.random.key(0)
    tokens = jax.random.randint(key, (2, 12), 0, 40)
    assert_same_logits_token_by_token(model, tokens)


def copy_llama(source, model):
    """Copies the weights of the transformers Llama `source` into `model`."""
    weights = {}
    for name, value in source.state_dict().items():
        weights[name] = np.asarray(value)

    def by_layer(name):
        stacked = []
        for layer in range(2):
            stacked.append(weights[f"model.layers.{layer}.{name}.weight"])
        return np.stack(stacked)

    def kernels(name):
        return by_layer(name).swapaxes(1, 2)

    def assign(parameter, numbers):
        parameter[...] = jnp.asarray(numbers)

    projections = [kernels(f"self_attn.{name}_proj") for name in "qkv"]
    stack = model.encoder.blocks
    qkv_kernel = np.concatenate(projections, axis=-1)
    assign(stack.attention.proj_in.kernel, qkv_kernel)
    assign(stack.attention.out.kernel, kernels("self_attn.o_proj"))
    assign(stack.mlp.gate.kernel, kernels("mlp.gate_proj"))
    assign(stack.mlp.proj_in.kernel, kernels("mlp.up_proj"))
    assign(stack.mlp.proj_out.kernel, kernels("mlp.down_proj"))
    assign(stack.attention_norm.scale, by_layer("input_layernorm"))
    assign(stack.mlp_norm.scale, by_layer("post_attention_layernorm"))
    norm_scale = weights["model.norm.weight"]
    assign(model.encoder.norm.scale, norm_scale)
    assign(model.embedding, weights["model.embed_tokens.weight"])
    assign(model.output_embedding, weights["lm_head.weight"])


def random_llama(transformers):
    """A Llama of two narrow layers, with no weight at its initial value."""
    import torch

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        rms_norm_eps=1e-6,
        attn_implementation="eager",
    )
    llama = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in llama.parameters():
            noise = torch.randn_like(parameter)
            parameter.add_(0.1 * noise)
    return llama


def next_token_loss(logits, tokens):
    """The mean cross-entropy of all tokens but the first."""
    predictions = logits[:, :-1]
    log_probabilities = jax.nn.log_softmax(predictions)
    targets = tokens[:, 1:, None]
    of_targets = jnp.take_along_axis(log_probabilities, targets, axis=-1)
    return -of_targets.mean()


def same_weights(llama):
    """Our model with the weights of a Llama of transformers."""
    spec = transformer(causal=True, **LLAMA)
    model = CausalLM(spec, 40, nnx.Rngs(0), tie_embeddings=False)
    copy_llama(llama, model)
    return model


def random_ids():
    return np.random.default_rng(0).integers(40, size=(3, 16))


@pytest.mark.slow
def test_states_and_logits_agree_with_the_llama_of_transformers(transformers):
    """With random weights."""
    import torch

    theirs = random_llama(transformers)
    ours = same_weights(theirs)
    ids = random_ids()
    tokens = jnp.asarray(ids)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids), output_hidden_states=True)
    last_states = expected.hidden_states[-1]
    assert_allclose(ours.hidden(tokens), last_states, rtol=1e-5, atol=2e-5)
    assert_allclose(ours(tokens), expected.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_losses_and_gradients_agree_with_the_llama_of_transformers(transformers):
    import torch

    theirs = random_llama(transformers)
    state, call = function_of(same_weights(theirs))
    ids = random_ids()
    tokens = jnp.asarray(ids)

    def loss(state):
        logits = call(state, tokens)
        return next_token_loss(logits, tokens)

    value, gradient = jax.value_and_grad(loss)(state)
    their_tokens = torch.from_numpy(ids)
    expected = theirs(their_tokens, labels=their_tokens).loss
    expected.backward()
    expected_loss = expected.item()
    assert float(value) == pytest.approx(expected_loss, rel=1e-5)
    embedding = gradient["embedding"][...]
    their_embedding = theirs.model.embed_tokens.weight.grad
    assert_allclose(embedding, their_embedding, rtol=1e-3, atol=1e-5)
    blocks = gradient["encoder"]["blocks"]
    gates = blocks["mlp"]["gate"]["kernel"][...]
    their_gates = []
    for layer in theirs.model.layers:
        their_gates.append(layer.mlp.gate_proj.weight.grad.T)
    stacked_gates = torch.stack(their_gates)
    assert_allclose(gates, stacked_gates, rtol=1e-3, atol=1e-5)
