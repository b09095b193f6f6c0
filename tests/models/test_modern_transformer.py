"""The options that make the Transformer a modern one, beside slow references and transformers'
Llama with the same weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models import blocks
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.layers import rms_norm
from gmlp_flax.models.text import CausalLM

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
    x = np.random.default_rng(0).normal(size=(3, 8)) + 2
    scale = np.linspace(0.5, 2, 8)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale
    y = rms_norm(jnp.asarray(x), jnp.asarray(scale, jnp.float32), 1e-6, jnp.float32)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_no_biases_means_no_parameter_of_that_name():
    encoder = nnx.eval_shape(lambda: Encoder(transformer(**LLAMA), nnx.Rngs(0)))
    names = ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(encoder))]
    assert names
    assert not [name for name in names if name.endswith("bias")]
    # attention, the three kernels of the MLP, and three norms
    assert len(names) == 2 + 3 + 3


@pytest.mark.parametrize("kind", ["geglu", "swiglu"])
def test_a_gated_mlp_is_a_product_of_two_linear_layers(kind):
    spec = transformer(mlp=kind)
    mlp = spec.block(spec, nnx.Rngs(0)).mlp
    x = jax.random.normal(jax.random.key(0), (2, 5, 32))
    gate = x @ mlp.gate.kernel[...] + mlp.gate.bias[...]
    opened = jax.nn.silu(gate) if kind == "swiglu" else jax.nn.gelu(gate, approximate=False)
    values = x @ mlp.proj_in.kernel[...] + mlp.proj_in.bias[...]
    expected = (opened * values) @ mlp.proj_out.kernel[...] + mlp.proj_out.bias[...]
    np.testing.assert_allclose(mlp(x), expected, rtol=1e-4, atol=1e-5)


def test_normalised_queries_and_keys_bound_the_logits():
    spec = transformer(qk_norm=True, positions="rotary")
    block = spec.block(spec, nnx.Rngs(0))
    x = 100 * jax.random.normal(jax.random.key(0), (2, 16, 32))
    scores = block.attention.scores(x)
    # |q| = |k| = sqrt(d), so that |q k| / sqrt(d) <= sqrt(d)
    assert float(jnp.abs(scores).max()) <= 8**0.5 + 1e-4
    assert float(jnp.abs(scores).max()) > 1


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [7, 16, 40])
def test_rotary_positions_take_any_length(tokens):
    spec = transformer(positions="rotary")
    assert spec.supports_length(tokens)
    encoder = Encoder(spec, nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (1, tokens, 32))
    assert encoder(x).shape == (1, tokens, 32)


@pytest.mark.slow
def test_a_text_read_token_by_token_is_as_read_whole():
    spec = transformer(causal=True, qk_norm=True, **LLAMA)
    model = CausalLM(spec, 40, nnx.Rngs(0))
    tokens = jax.random.randint(jax.random.key(0), (2, 12), 0, 40)
    whole = model(tokens)
    caches = None
    for position in range(12):
        token = tokens[:, position : position + 1]
        logits, caches = model.extend(token, caches, jnp.int32(position), jnp.int32(0))
        np.testing.assert_allclose(logits, whole[:, position], rtol=1e-4, atol=1e-5)


def copy_llama(source, model):
    """Copies the weights of transformers' Llama into ours."""
    state = {name: np.asarray(value) for name, value in source.state_dict().items()}

    def layers(name, transposed=True):
        stacked = [state[f"model.layers.{layer}.{name}.weight"] for layer in range(2)]
        return np.stack([weight.T if transposed else weight for weight in stacked])

    stack = model.encoder.blocks
    projections = [layers(f"self_attn.{name}_proj") for name in "qkv"]
    stack.attention.proj_in.kernel[...] = jnp.asarray(np.concatenate(projections, axis=-1))
    stack.attention.out.kernel[...] = jnp.asarray(layers("self_attn.o_proj"))
    stack.mlp.gate.kernel[...] = jnp.asarray(layers("mlp.gate_proj"))
    stack.mlp.proj_in.kernel[...] = jnp.asarray(layers("mlp.up_proj"))
    stack.mlp.proj_out.kernel[...] = jnp.asarray(layers("mlp.down_proj"))
    stack.attention_norm.scale[...] = jnp.asarray(layers("input_layernorm", transposed=False))
    stack.mlp_norm.scale[...] = jnp.asarray(layers("post_attention_layernorm", transposed=False))
    model.encoder.norm.scale[...] = jnp.asarray(state["model.norm.weight"])
    model.embedding[...] = jnp.asarray(state["model.embed_tokens.weight"])
    model.output_embedding[...] = jnp.asarray(state["lm_head.weight"])


@pytest.mark.slow
def test_llama_of_transformers(transformers):
    """Hidden states, logits and the gradient of a loss, with random weights."""
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
    theirs = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ours = CausalLM(transformer(causal=True, **LLAMA), 40, nnx.Rngs(0), tie_embeddings=False)
    copy_llama(theirs, ours)
    ids = np.random.default_rng(0).integers(40, size=(3, 16))
    tokens = torch.from_numpy(ids)
    out = theirs(tokens, output_hidden_states=True, labels=tokens)
    hidden = ours.hidden(jnp.asarray(ids))
    np.testing.assert_allclose(hidden, out.hidden_states[-1].detach(), rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(ours(jnp.asarray(ids)), out.logits.detach(), rtol=1e-4, atol=1e-4)

    definition, params = nnx.split(ours)

    def loss(params):
        logits = nnx.merge(definition, params)(jnp.asarray(ids))[:, :-1]
        log_shares = jax.nn.log_softmax(logits)
        targets = jnp.asarray(ids)[:, 1:, None]
        return -jnp.take_along_axis(log_shares, targets, axis=-1).mean()

    value, gradient = jax.value_and_grad(loss)(params)
    out.loss.backward()
    assert float(value) == pytest.approx(out.loss.item(), rel=1e-5)
    expected = theirs.model.embed_tokens.weight.grad
    np.testing.assert_allclose(gradient["embedding"][...], expected, rtol=1e-3, atol=1e-5)
    gates = [layer.mlp.gate_proj.weight.grad.T for layer in theirs.model.layers]
    ours_of_gates = gradient["encoder"]["blocks"]["mlp"]["gate"]["kernel"][...]
    np.testing.assert_allclose(ours_of_gates, torch.stack(gates), rtol=1e-3, atol=1e-5)
