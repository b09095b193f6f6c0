"""Optimizers, compared with optax or their papers. tests/training has clipping and masks."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

from gmlp_flax import config as gmlp_config
from gmlp_flax.config.optimizers import HYPERPARAMETERS, OPTIMIZERS, Masks, find
from gmlp_flax.errors import ConfigError
from tests.failures import raised


def test_hyperparameters_are_keys_and_have_optimizers():
    keys = gmlp_config.keys(gmlp_config.default())
    for name, option in HYPERPARAMETERS.items():
        assert keys[f"optimizer.{name}"] is option
        users = []
        for row, known in OPTIMIZERS.items():
            if name in known.hyperparameters:
                users.append(row)
        assert users
        if len(users) <= 3:
            assert all(row in option.comment for row in users)


def refusal(**options):
    """The message of the error of these options."""
    config = gmlp_config.default()
    config.optimizer.update(options)
    return raised(ConfigError, gmlp_config.validate, config)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"name": "lion", "eps": 1e-8},
            ["optimizer.eps is 1e-08", "'lion'", "adamw", "--config.optimizer.eps=1e-06"],
        ),
        ({"name": "adamw", "beta": 0.9}, ["optimizer.beta is 0.9", "'adamw'", "(muon have)"]),
        ({"name": "nadamw", "nesterov": True}, ["optimizer.nesterov is True", "'nadamw'"]),
        (
            {"name": "adam"},
            ["optimizer.weight_decay is 0.05", "'adam'", "--config.optimizer.weight_decay=0.0"],
        ),
        (
            {"name": "schedule_free"},
            ["optimizer.schedule is 'cosine'", "schedule_free", "schedule=constant"],
        ),
        (
            {"name": "schedule_free", "schedule": "constant", "ema": 0.9},
            ["optimizer.ema is 0.9", "ema=0.0"],
        ),
        (
            {"name": "schedule_free", "schedule": "constant", "b1": 0.0},
            ["optimizer.b1 is 0.0", "b1=0.9"],
        ),
        (
            {"name": "addamw"},
            ["optimizer.name is 'addamw'", "'adamw'", "my_package.my_module:my_function"],
        ),
        ({"name": "optax:Params"}, ["optimizer.name is 'optax:Params'", "learning_rate"]),
        ({"name": "optax:nothing"}, ["optimizer.name is 'optax:nothing'", "cannot be imported"]),
        ({"name": "optax:novograd"}, ["optimizer.weight_decay is 0.05", "'optax:novograd'"]),
    ],
)
def test_options_of_other_optimizers_are_refused(options, words):
    message = refusal(**options)
    for word in words:
        assert word in message, message


def all_of(value):
    """A mask that is the same for all parameters."""

    def mask(params):
        return jax.tree.map(lambda _: value, params)

    return mask


DECAYED_LAYERS = Masks(decayed=all_of(True), stacked=all_of(True), matrices=all_of(True))
DECAYED_VECTORS = Masks(decayed=all_of(True), stacked=all_of(False), matrices=all_of(False))


def options_of(name, **values):
    """The group of config keys of an optimizer."""
    options = gmlp_config.default().optimizer
    options.update(name=name, **values)
    return options


def halves(learning_rate, b1, weight_decay, mask, scale=0.5):
    """A user-defined optimizer: half of the gradient, and decay."""
    return optax.chain(
        optax.scale(scale * b1),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate),
    )


def test_user_defined_optimizers_get_the_keys_that_they_name():
    config = gmlp_config.default()
    config.optimizer.update(name="tests.config.test_optimizers:halves", b1=0.5, weight_decay=0.1)
    gmlp_config.validate(config)
    found = find(config.optimizer.name)
    assert set(found.hyperparameters) == {"b1", "weight_decay"}
    masks = Masks(
        decayed=lambda _: {"kernel": True, "bias": False},
        stacked=all_of(False),
        matrices=all_of(False),
    )
    schedule = optax.constant_schedule(0.1)
    transformation = found.make(schedule, config.optimizer, masks)
    ones = jnp.ones(2)
    params = {"kernel": ones, "bias": ones}
    gradients = params
    state = transformation.init(params)
    updates, _ = transformation.update(gradients, state, params)
    kernel_update = -0.1 * (0.25 + 0.1)
    assert_allclose(updates["kernel"], kernel_update, rtol=1e-6)
    bias_update = -0.1 * 0.25
    assert_allclose(updates["bias"], bias_update, rtol=1e-6)
    with_b2 = config.optimizer.to_dict() | {"b2": 0.9}
    assert "optimizer.b2 is 0.9" in refusal(**with_b2)


def test_optimizers_in_untrusted_configs_are_not_imported():
    with pytest.raises(ConfigError, match=r"--trust=somebodys"):
        gmlp_config.from_dict({"optimizer": {"name": "somebodys:optimizer"}}, "RUN/config.json")


def test_muon_makes_each_layer_orthogonal():
    """Each layer is compared with optax.contrib.muon on a single matrix. Before the scale, the
    singular values of the update are near 1."""
    options = options_of("muon", weight_decay=0.0)
    rng = np.random.default_rng(0)
    layers = jnp.ones((3, 8, 12))
    embedding = jnp.ones((5, 8))
    params = {"layers": layers, "embedding": embedding}
    gradients = {}
    for name, array in params.items():
        noise = rng.normal(size=array.shape)
        gradients[name] = jnp.asarray(noise, jnp.float32)

    def in_layers(params):
        return {"layers": True, "embedding": False}

    masks = Masks(decayed=all_of(True), stacked=in_layers, matrices=in_layers)
    rate = optax.constant_schedule(1.0)
    transformation = find("muon").make(rate, options, masks)
    updates = first_updates(transformation, gradients, params)
    muon = optax.contrib.muon(1.0, consistent_rms=0.2)
    scale = 0.2 * 12**0.5
    pairs = zip(gradients["layers"], updates["layers"], strict=True)
    for gradient, update in pairs:
        initial = muon.init(gradient)
        expected, _ = muon.update(gradient, initial, gradient)
        assert_allclose(update, expected, rtol=1e-4, atol=1e-5)
        singular_values = np.linalg.svd(expected, compute_uv=False)
        values = singular_values / scale
        assert values.min() > 0.5
        assert values.max() < 1.5
    adam = optax.adam(1.0, eps=options.eps, nesterov=True)
    expected = first_updates(adam, gradients["embedding"], embedding)
    assert_allclose(updates["embedding"], expected, rtol=1e-5)


def first_updates(transformation, gradients, params):
    """The updates of a new optimizer."""
    state = transformation.init(params)
    updates, _ = jax.jit(transformation.update)(gradients, state, params)
    return updates


ADAFACTOR = {"weight_decay": 0.0, "multiply_by_parameter_scale": True}


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 128, 130), (140, 130), (140, 128, 3), (140, 2, 2)])
def test_adafactor_updates_each_layer_as_optax_does(shape):
    """Even if there are more than 128 layers, their axis is not factored."""
    layers, *layer_shape = shape
    scale_of_layer = np.geomspace(1, 100, layers)
    params_of_layer = []
    for scale in scale_of_layer:
        params_of_layer.append(np.full(layer_shape, scale, np.float32))
    params = np.stack(params_of_layer)
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2, *shape))
    gradients = noise.astype(np.float32)
    options = options_of("adafactor", **ADAFACTOR)
    schedule = optax.constant_schedule(0.1)
    transformation = find("adafactor").make(schedule, options, DECAYED_LAYERS)
    state = transformation.init(params)
    updates = []
    for gradient in gradients:
        update, state = transformation.update(gradient, state, params)
        updates.append(update)
    adafactor = optax.adafactor(0.1)
    for layer in (0, layers - 1):
        param = params[layer]
        state_of_layer = adafactor.init(param)
        for gradient, update in zip(gradients, updates, strict=True):
            layer_gradient = gradient[layer]
            expected, state_of_layer = adafactor.update(layer_gradient, state_of_layer, param)
            assert_allclose(update[layer], expected, rtol=1e-4)


def test_adafactor_has_a_state_of_rows_and_columns():
    params = jnp.ones((2, 128, 130))
    options = options_of("adafactor", **ADAFACTOR)
    schedule = optax.constant_schedule(0.1)
    transformation = find("adafactor").make(schedule, options, DECAYED_LAYERS)
    state = transformation.init(params)
    leaves = jax.tree.leaves(state)
    size = sum(leaf.size for leaf in leaves)
    assert size < 4 * 130 * 2


def test_lion_has_the_second_decay_of_its_paper():
    """Chen et al. 2023, arXiv 2302.06675: b1 0.9 and b2 0.99, as in optax."""
    options = options_of("lion", weight_decay=0.5)
    schedule = optax.constant_schedule(0.1)
    ours = find("lion").make(schedule, options, DECAYED_VECTORS)
    theirs = optax.lion(0.1, 0.9, 0.99, weight_decay=0.5)
    params = jnp.ones(5)
    our_state = ours.init(params)
    their_state = theirs.init(params)
    # After one large gradient, momenta of 0.99 and 0.999 change their signs at different steps.
    for value in (10.0, *[-0.5] * 30):
        gradient = jnp.full(5, value)
        update, our_state = ours.update(gradient, our_state, params)
        expected, their_state = theirs.update(gradient, their_state, params)
        assert_allclose(update, expected, rtol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_has_both_kinds_of_momentum(nesterov):
    """Sutskever et al. 2013: m = b m + g. The step is m, or with Nesterov's momentum g + b m."""
    options = options_of("sgd", b1=0.9, weight_decay=0.0, nesterov=nesterov)
    schedule = optax.constant_schedule(0.1)
    sgd = OPTIMIZERS["sgd"]
    transformation = sgd.make(schedule, options, DECAYED_VECTORS)
    update_step = jax.jit(transformation.update)
    params = jnp.zeros(3)
    state = transformation.init(params)
    momentum = np.zeros(3)
    rows = [[1.0, -2.0, 0.5], [0.5, 0.0, 3.0], [-1.0, 1.0, 1.0]]
    gradients = np.float32(rows)
    for gradient in gradients:
        momentum = 0.9 * momentum + gradient
        direction = gradient + 0.9 * momentum if nesterov else momentum
        update, state = update_step(gradient, state, params)
        assert_allclose(update, -0.1 * direction, rtol=1e-5)
