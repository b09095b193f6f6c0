import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.errors import ConfigError
from gmlp_flax.tasks import mixing
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.training import step
from gmlp_flax.training.partition import Partition
from tests import preloaded
from tests.failures import raised
from tests.training import tiny


def slow_outside(size, share, centre):
    """CutMix's box, pixel by pixel, in Python's integers."""
    sides = [int(side * np.sqrt(np.float32(1) - np.float32(share))) for side in size]
    outside = np.ones(size)
    for row in range(centre[0] - sides[0] // 2, centre[0] + (sides[0] + 1) // 2):
        for column in range(centre[1] - sides[1] // 2, centre[1] + (sides[1] + 1) // 2):
            if 0 <= row < size[0] and 0 <= column < size[1]:
                outside[row, column] = 0
    return outside


@pytest.mark.parametrize("size", [(1, 1), (5, 12), (8, 8)])
def test_box(size):
    """Around every centre, of every hundredth of the area."""
    centres = np.array([*np.ndindex(size)] * 101)
    # Between the shares at which a side is a whole number.
    shares = np.repeat(np.append(np.arange(100) / 100 + 1e-4, 1), np.prod(size)).astype(np.float32)
    found = jax.jit(jax.vmap(functools.partial(mixing.outside_box, size)))(shares, centres)
    for outside, share, centre in zip(np.asarray(found), shares, centres, strict=True):
        np.testing.assert_array_equal(outside, slow_outside(size, share, centre))


def test_blended_pixels_are_rounded():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
    for own in (
        np.full((1, 6, 5), 0.3, np.float32),
        np.random.default_rng(1).random((4, 6, 5), np.float32),
    ):
        found, weights = np.array(mixing.blend_pixels(pixels, own)), own[..., None].astype(float)
        exact = weights * pixels + (1 - weights) * np.roll(pixels, 2, axis=0)
        assert found.dtype == np.uint8 and np.abs(found - exact).max() <= 0.5 + 1e-4
    outside = np.arange(30).reshape(1, 6, 5) % 2
    cut = np.where(outside[..., None], pixels, np.roll(pixels, 2, axis=0))
    np.testing.assert_array_equal(mixing.blend_pixels(pixels, outside.astype(np.float32)), cut)


def weights(draws=4000, size=(6, 8), **options):
    options = {"mixup": 0.8, "cutmix": 1.0, "switch": 0.5} | options
    draw = jax.jit(functools.partial(mixing.own_weights, size=size, **options))
    found, shares = map(np.array, draw(jax.random.split(jax.random.key(0), draws)))
    np.testing.assert_allclose(shares, found.mean((1, 2), dtype=np.float64), rtol=1e-6)
    return found


def test_mixup_draws():
    """Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)); the same share of every pixel."""
    found = weights(cutmix=0.0)
    assert found.shape == (4000, 6, 8) and (found == found[:, :1, :1]).all()
    assert found.mean() == pytest.approx(0.5, abs=0.03) and found.var() == pytest.approx(
        1 / 10.4, abs=0.005
    )


def test_cutmix_draws():
    found = weights(mixup=0.0, size=(24, 32))
    assert set(np.unique(found)) == {0, 1}
    # Boxes that the borders cut take less than the half that is drawn on average: timm's rand_bbox
    # gives 0.6.
    rng, shares = np.random.default_rng(0), []
    for _ in range(4000):
        shares.append(
            slow_outside((24, 32), rng.beta(1, 1), (rng.integers(24), rng.integers(32))).mean()
        )
    assert found.mean() == pytest.approx(np.mean(shares), abs=0.02)
    assert found.mean((1, 2)).std() == pytest.approx(np.std(shares), abs=0.02)


def test_switch():
    found = weights(switch=0.3)
    cut = ((found == 0) | (found == 1)).all((1, 2))
    assert cut.mean() == pytest.approx(0.3, abs=0.03)


@pytest.fixture
def task(tmp_path):
    config = tiny.image_config(dtype="float64", remat="none", spatial_init_std=0.1)
    config.augment.update(mixup=0.8, cutmix=1.0)
    config.optimizer.label_smoothing = 0.1
    return ImageClassification(config, str(tmp_path))


@pytest.fixture
def batch(task):
    with task.train_batches(0, 0, 1) as batches:
        return next(batches) | {"key": jax.random.split(jax.random.key(7), 8)}


def expected_loss(task, params, batch, own):
    """By hand: own [8, height, width]. The summed loss and the hits of the label that prevails."""
    images, targets, prevailing = [], [], []
    for i in range(8):
        j, keep = (i + 4) % 8, own[i][..., None]
        images.append(
            np.rint(keep * batch["image"][i] + (1 - keep) * batch["image"][j]).astype(np.uint8)
        )
        share = own[i].mean()
        target = np.full(10, 0.01)
        target[batch["label"][i]] += 0.9 * share
        target[batch["label"][j]] += 0.9 * (1 - share)
        targets.append(target)
        prevailing.append(batch["label"][i if share >= 0.5 else j])
    logits = np.array(jax.jit(task.apply)(params, np.stack(images)))
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -(np.stack(targets) * log_p).sum(), (logits.argmax(-1) == prevailing).sum()


def test_backward_keeps_mixed_images_as_bytes(task, batch):
    def backward(params):
        return jax.vjp(
            lambda params: task.loss(params, task.mix(batch, jax.random.key(3)))[0], params
        )[1]

    with jax.enable_x64(True):
        kept = jax.tree.leaves(
            jax.eval_shape(backward, jax.eval_shape(task.init, jax.random.key(0)))
        )
    assert {x.dtype.name for x in kept if x.shape == batch["image"].shape} == {"uint8"}


@pytest.mark.parametrize(("mixing_mode", "switch"), [("batch", 0.0), ("pair", 1.0)])
def test_loss(task, batch, mixing_mode, switch):
    task.config.augment.update(mixing=mixing_mode, switch=switch)
    with jax.enable_x64(True):
        params, key = tiny.random_params(task.shapes()), jax.random.key(3)
        keys = [key] * 8 if mixing_mode == "batch" else list(batch["key"][:4]) * 2
        draw = functools.partial(
            mixing.own_weights, size=(8, 8), mixup=0.8, cutmix=1.0, switch=switch
        )

        @jax.jit  # the draws, which are most of it, are compiled once
        def loss_and_weights(params, batch):
            return task.loss(params, task.mix(batch, key)), draw(jnp.stack(keys))[0]

        (total, sums), own = jax.device_get(loss_and_weights(params, batch))
        assert len(np.unique(own, axis=0)) == (1 if mixing_mode == "batch" else 4)
        loss, hits = expected_loss(task, params, batch, own)
    assert float(total) == float(sums["loss"][0]) == pytest.approx(loss, rel=1e-6)
    assert float(sums["accuracy"][0]) == hits and float(sums["loss"][1]) == 8


def test_pairs_are_the_same_however_the_batch_is_cut(task, batch):
    """In four microbatches of a pair each; in float64, so that sums in another order agree."""
    task.config.augment.mixing, found = "pair", {}
    with jax.enable_x64(True):
        params = tiny.random_params(task.shapes())
        for microbatches in (1, 4):
            gradients = jax.jit(
                lambda p, b, m=microbatches: step.gradients(
                    task, p, task.mix(b, jax.random.key(2)), m, Partition.make()
                )
            )
            found[microbatches] = jax.device_get(gradients(params, batch))
    (expected, sums), (grads, other) = found.values()
    assert other["accuracy"] == sums["accuracy"] and other["loss"][0] == pytest.approx(
        sums["loss"][0], rel=1e-6
    )
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-8), grads, expected
    )


def test_an_odd_microbatch_is_refused():
    config = gmlp_config.default(task="image_classification")
    config.batch_size, config.optimizer.grad_accum_steps = 6, 2
    gmlp_config.validate(config)
    config.augment.cutmix = 1.0
    assert raised(ConfigError, gmlp_config.validate, config).startswith("config.batch_size is 6: ")


DEVICES = """
import jax

from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.training import step
from gmlp_flax.training.partition import Partition
from tests.training import tiny

config = tiny.image_config(remat="none", spatial_init_std=0.1)
config.augment.update(mixup=0.8, cutmix=1.0, mixing="pair")
task, partition = ImageClassification(config, ""), Partition.make()
training = step.Training(task, partition)
state = training.init(jax.random.key(0))
compiled, losses = None, []
with task.train_batches(0, 0, 1) as batches:
    for _ in range(3):
        batch = partition.put_batch(next(batches))
        compiled = compiled or training.step.lower(state, batch).compile()
        state, window = compiled(state, batch)
        losses.append(float(window["loss"][0]))
lines = [line for line in compiled.as_text().splitlines() if "8,8,1]" in line]
assert not any("all-gather" in line for line in lines), lines
assert any(" collective-permute" in line and "u8[" in line for line in lines) == (jax.device_count() > 1), lines
print(*losses)
"""


@pytest.mark.slow
def test_number_of_devices_makes_no_difference():
    """Images move between devices as bytes, each share once; none is gathered."""
    found = {}
    for devices in (1, 4):
        variables = {"XLA_FLAGS": preloaded.devices(devices), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        done = preloaded.run("-c", DEVICES, **variables)
        assert done.returncode == 0, done.stderr
        found[devices] = np.array(done.stdout.split(), float)
    assert len(set(found[1])) == 3
    np.testing.assert_allclose(found[4], found[1], rtol=1e-5)
