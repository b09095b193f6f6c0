import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.gating import GateSpec, SpatialGate, gate_width
from gmlp_flax.options import options_of
from tests.models.reference import gate, in_float64, layer_norm, normal, params_of, randomized, small_spec, spatial

GATES = options_of(GateSpec)["gate"].values

KINDS = pytest.mark.parametrize("kind", GATES)


def fresh(kind, **fields):
    return SpatialGate(small_spec(gate=kind, **fields), nnx.Rngs(0))


def trained(kind):
    return randomized(lambda: fresh(kind))


@KINDS
@pytest.mark.parametrize("attended", [False, True])
@in_float64
def test_against_numpy(kind, attended):
    module, width = trained(kind), gate_width(small_spec(gate=kind))
    z, attention = normal(0, 2, 5, 8), normal(1, 2, 5, width) if attended else None
    expected = [gate(params_of(module), z[i], kind, attention[i] if attended else 0) for i in range(2)]
    y = module(z, attention)
    assert y.shape == (2, 5, width) and width == (4 if kind == "split" else 8)
    np.testing.assert_allclose(y, expected, atol=1e-12)


@pytest.mark.parametrize(
    "kind, expected", [("linear", "zero"), ("additive", "z"), ("multiplicative", "z"), ("split", "first half")]
)
def test_a_fresh_gate_passes_its_input(kind, expected):
    z = normal(0, 2, 5, 8).astype(np.float32)
    y = fresh(kind, dtype="float32", spatial_init_std=0.0)(z)
    np.testing.assert_array_equal(y, {"zero": np.zeros_like(z), "z": z, "first half": z[..., :4]}[expected])
    near = fresh(kind, dtype="float32")(z)
    np.testing.assert_allclose(near, y, atol=1e-4)


@in_float64
def test_the_first_half_passes_and_the_second_is_normalised():
    module = trained("split")
    z = normal(0, 1, 5, 8)
    first, second = z.copy(), z.copy()
    first[..., :4] *= 3
    second[..., 4:] *= 3
    np.testing.assert_allclose(module(first), 3 * module(z), rtol=1e-12)
    np.testing.assert_allclose(module(second), module(z), rtol=1e-4)


@pytest.mark.parametrize(
    "fields, eps",
    [
        ({}, 1e-6),
        ({"norm_eps": 0.1}, 0.1),
        ({"gate_norm_eps": 0.2}, 0.2),
        ({"norm_eps": 0.1, "gate_norm_eps": 0.2}, 0.2),
    ],
)
@in_float64
def test_the_epsilon_inside_the_gate(fields, eps):
    """The spec's own, or that of the other norms."""
    module, z = randomized(lambda: fresh("split", **fields)), normal(0, 5, 8)
    p = params_of(module)
    f = spatial(p["spatial"], layer_norm(p["norm"], z[:, 4:], eps))
    np.testing.assert_allclose(module(z[None])[0], z[:, :4] * f, atol=1e-12)


@in_float64
def test_attention_joins_before_the_product():
    module = trained("split")
    z, attention = normal(0, 1, 5, 8), normal(1, 1, 5, 4)
    np.testing.assert_allclose(module(z, attention) - module(z), z[..., :4] * attention, atol=1e-13)


@KINDS
def test_bfloat16(kind):
    spec = small_spec(gate=kind, dtype="bfloat16")
    module = SpatialGate(spec, nnx.Rngs(0))
    y = module(jnp.ones((1, 5, 8), jnp.bfloat16), jnp.ones((1, 5, gate_width(spec)), jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
