"""The rows of optimizers, each against its paper. With clipping and masks they are tested in tests/training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.config.optimizers import OPTIMIZERS


def test_hyperparameters_of_a_row_are_keys_of_every_config():
    keys = gmlp_config.keys(gmlp_config.default())
    for row in OPTIMIZERS.values():
        for name, option in row.options.items():
            assert keys[f"optimizer.{name}"].default == option.default
    assert "only of sgd" in keys["optimizer.nesterov"].comment


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_both_kinds_of_momentum(nesterov):
    """Sutskever et al. 2013: m = b m + g; the step is m, or g + b m of Nesterov's."""
    options = gmlp_config.default().optimizer
    options.update(name="sgd", b1=0.9, weight_decay=0.0, nesterov=nesterov)
    transformation = OPTIMIZERS["sgd"].make(optax.constant_schedule(0.1), options, lambda params: True)
    params, momentum = jnp.zeros(3), np.zeros(3)
    state = transformation.init(params)
    for gradient in np.array([[1.0, -2.0, 0.5], [0.5, 0.0, 3.0], [-1.0, 1.0, 1.0]]):
        momentum = 0.9 * momentum + gradient
        expected = -0.1 * (gradient + 0.9 * momentum if nesterov else momentum)
        update, state = jax.jit(transformation.update)(jnp.asarray(gradient, jnp.float32), state, params)
        np.testing.assert_allclose(update, expected, rtol=1e-5)
