"""The rows of optimizers, each against its paper. With clipping and masks they are tested in
tests/training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.config.optimizers import HYPERPARAMETERS, OPTIMIZERS, Masks, find
from gmlp_flax.errors import ConfigError
from tests.failures import raised


def test_hyperparameters_are_keys_of_every_config_and_each_has_an_optimizer():
    keys = gmlp_config.keys(gmlp_config.default())
    for name, option in HYPERPARAMETERS.items():
        assert keys[f"optimizer.{name}"] is option
        having = [row for row, known in OPTIMIZERS.items() if name in known.hyperparameters]
        assert having
        assert len(having) > 3 or all(row in option.comment for row in having)


def refused(**options):
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
def test_what_an_optimizer_does_not_have_is_refused(options, words):
    message = refused(**options)
    for word in words:
        assert word in message, message


def all_of(value):
    """A mask that is the same for all parameters."""
    return lambda params: jax.tree.map(lambda _: value, params)


def halves(learning_rate, b1, weight_decay, mask, scale=0.5):
    """An optimizer of the user's own: half of the gradient, and decay."""
    steps = optax.scale(scale * b1), optax.add_decayed_weights(weight_decay, mask)
    return optax.chain(*steps, optax.scale_by_learning_rate(learning_rate))


def test_an_optimizer_of_the_users_own_gets_the_keys_that_it_names():
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
    transformation = found.make(optax.constant_schedule(0.1), config.optimizer, masks)
    params = {"kernel": jnp.ones(2), "bias": jnp.ones(2)}
    updates, _ = transformation.update(params, transformation.init(params), params)
    np.testing.assert_allclose(updates["kernel"], -0.1 * (0.25 + 0.1), rtol=1e-6)
    np.testing.assert_allclose(updates["bias"], -0.1 * 0.25, rtol=1e-6)
    assert "optimizer.b2 is 0.9" in refused(**config.optimizer.to_dict() | {"b2": 0.9})


def test_a_config_of_somebody_else_runs_no_optimizer_of_theirs():
    with pytest.raises(ConfigError, match=r"--trust=somebodys"):
        gmlp_config.from_dict({"optimizer": {"name": "somebodys:optimizer"}}, "RUN/config.json")


def test_muon_makes_each_layer_orthogonal():
    """Against optax.contrib.muon on a single matrix; singular values of the update are near 1
    before the scale."""
    options = gmlp_config.default().optimizer
    options.update(name="muon", weight_decay=0.0)
    draw = np.random.default_rng(0).normal
    params = {"layers": {"w": jnp.ones((3, 8, 12))}, "embedding": jnp.ones((5, 8))}
    in_layers = lambda params: {**all_of(False)(params), "layers": {"w": True}}  # noqa: E731
    masks = Masks(decayed=all_of(True), stacked=in_layers, matrices=in_layers)
    gradients = jax.tree.map(lambda p: jnp.asarray(draw(size=p.shape), jnp.float32), params)
    transformation = find("muon").make(optax.constant_schedule(1.0), options, masks)
    found, _ = jax.jit(transformation.update)(gradients, transformation.init(params), params)
    alone = optax.contrib.muon(1.0, consistent_rms=0.2)
    for layer in range(3):
        gradient = gradients["layers"]["w"][layer]
        expected, _ = alone.update(gradient, alone.init(gradient), gradient)
        np.testing.assert_allclose(found["layers"]["w"][layer], expected, rtol=1e-4, atol=1e-5)
        values = np.linalg.svd(expected, compute_uv=False) / (0.2 * 12**0.5)
        assert values.min() > 0.5
        assert values.max() < 1.5
    adam = optax.adam(1.0, eps=options.eps, nesterov=True)
    expected, _ = adam.update(
        gradients["embedding"], adam.init(params["embedding"]), params["embedding"]
    )
    np.testing.assert_allclose(found["embedding"], expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 128, 130), (140, 130), (140, 128, 3), (140, 2, 2)])
def test_adafactor_is_optaxs_by_layer(shape):
    """However many layers there are: their axis is none to factor."""
    options = gmlp_config.default().optimizer
    options.update(name="adafactor", weight_decay=0.0, multiply_by_parameter_scale=True)
    scales = np.geomspace(1, 100, shape[0]).reshape(-1, *(1,) * (len(shape) - 1))
    params = {"w": jnp.asarray(scales * np.ones(shape), jnp.float32)}
    masks = Masks(decayed=all_of(True), stacked=all_of(True), matrices=all_of(True))
    draw = np.random.default_rng(0).normal
    gradients = [draw(size=shape).astype(np.float32) for _ in range(2)]
    transformation = find("adafactor").make(optax.constant_schedule(0.1), options, masks)
    state = transformation.init(params)
    if shape == (2, 128, 130):
        got = sum(leaf.size for leaf in jax.tree.leaves(state))
        assert got < 4 * 130 * 2  # rows and columns
    found = []
    for gradient in gradients:
        update, state = transformation.update({"w": jnp.asarray(gradient)}, state, params)
        found.append(update["w"])
    alone = optax.adafactor(0.1)
    for layer in (0, shape[0] - 1):
        param = params["w"][layer]
        of_layer = alone.init(param)
        for gradient, update in zip(gradients, found, strict=True):
            expected, of_layer = alone.update(jnp.asarray(gradient[layer]), of_layer, param)
            np.testing.assert_allclose(update[layer], expected, rtol=1e-4)


def test_lion_has_the_second_decay_of_its_paper():
    """Chen et al. 2023, arXiv 2302.06675: b1 0.9 and b2 0.99, as in optax."""
    options = gmlp_config.default().optimizer
    options.update(name="lion", weight_decay=0.5)
    masks = Masks(decayed=all_of(True), stacked=all_of(False), matrices=all_of(False))
    found = find("lion").make(optax.constant_schedule(0.1), options, masks)
    expected = optax.lion(0.1, 0.9, 0.99, weight_decay=0.5)
    params = {"w": jnp.ones(5)}
    states = [found.init(params), expected.init(params)]
    # After one large gradient, momenta of 0.99 and 0.999 change their signs at different steps.
    for gradient in (10.0, *[-0.5] * 30):
        grads = {"w": jnp.full(5, gradient)}
        update, states[0] = found.update(grads, states[0], params)
        right, states[1] = expected.update(grads, states[1], params)
        np.testing.assert_allclose(update["w"], right["w"], rtol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_both_kinds_of_momentum(nesterov):
    """Sutskever et al. 2013: m = b m + g; the step is m, or g + b m of Nesterov's."""
    options = gmlp_config.default().optimizer
    options.update(name="sgd", b1=0.9, weight_decay=0.0, nesterov=nesterov)
    masks = Masks(decayed=all_of(True), stacked=all_of(False), matrices=all_of(False))
    transformation = OPTIMIZERS["sgd"].make(optax.constant_schedule(0.1), options, masks)
    params = jnp.zeros(3)
    momentum = np.zeros(3)
    state = transformation.init(params)
    for gradient in np.array([[1.0, -2.0, 0.5], [0.5, 0.0, 3.0], [-1.0, 1.0, 1.0]]):
        momentum = 0.9 * momentum + gradient
        expected = -0.1 * (gradient + 0.9 * momentum if nesterov else momentum)
        update, state = jax.jit(transformation.update)(
            jnp.asarray(gradient, jnp.float32), state, params
        )
        np.testing.assert_allclose(update, expected, rtol=1e-5)
