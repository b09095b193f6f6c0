import jax
import jax.numpy as jnp
import numpy as np
import optax

from gmlp_flax.checkpoints.pytree import digest, from_dict, path_name, to_dict
from gmlp_flax.training.step import TrainState


def example(ema):
    params = {"layer": {"kernel": jnp.arange(3.0), "bias": jnp.ones(())}}
    optimizer = optax.adamw(optax.constant_schedule(1e-3))
    window = {"loss": (jnp.zeros(()), jnp.ones(()))}
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), params if ema else None, window)


def test_names_are_paths_of_the_values():
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(example(ema=True))]
    assert {"step", "params/layer/kernel", "ema/layer/bias", "opt_state/0/mu/layer/kernel", "window/loss/1"} <= set(
        names
    )
    assert len(set(names)) == len(names)


def test_round_trip_keeps_structure_and_values():
    for ema in (False, True):
        state = example(ema)
        values = to_dict(state)
        assert ("ema" in values) is ema
        back = from_dict(jax.eval_shape(lambda: example(ema)), values)  # noqa: B023
        assert jax.tree.structure(back) == jax.tree.structure(state)
        jax.tree.map(np.testing.assert_array_equal, back, state)


def test_the_digest_is_of_names_shapes_and_types():
    first = {"a": {"b": np.zeros(3, np.float32)}, "c": np.zeros((), np.int32)}
    assert digest(first) == digest({"c": np.ones((), np.int32), "a": {"b": np.ones(3, np.float32)}})
    others = (
        {"b": np.zeros(3, np.float32)},
        {"x": np.zeros(3, np.float32)},
        {"b": np.zeros(4, np.float32)},
        {"b": np.zeros(3)},
    )
    assert [digest({**first, "a": other}) == digest(first) for other in others] == [True, False, False, False]
