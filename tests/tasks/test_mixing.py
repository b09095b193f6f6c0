"""Mixup and CutMix: boxes, shares and blended pixels against slow references, the loss of mixed
batches by hand, and the same pairs however a batch is spread."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.errors import ConfigError
from gmlp_flax.tasks import mixing
from gmlp_flax.training import step
from gmlp_flax.training.partition import Partition
from tests import preloaded
from tests.failures import raised
from tests.training import tiny


def slow_outside(size: tuple[int, int], share: float, centre: tuple[int, int]) -> np.ndarray:
    """CutMix's box, pixel by pixel, in Python's integers."""
    sides = [int(side * np.sqrt(np.float32(1) - np.float32(share))) for side in size]
    outside = np.ones(size)
    for row in range(centre[0] - sides[0] // 2, centre[0] + (sides[0] + 1) // 2):
        for column in range(centre[1] - sides[1] // 2, centre[1] + (sides[1] + 1) // 2):
            if 0 <= row < size[0] and 0 <= column < size[1]:
                outside[row, column] = 0
    return outside


@pytest.mark.parametrize("size", [(1, 1), (5, 12), (8, 8)])
def test_boxes(size):
    """Around every centre, of every hundredth of the area."""
    centres = np.array([*np.ndindex(size)] * 101)
    # Between the shares at which a side is a whole number.
    steps = np.append(np.arange(100) / 100 + 1e-4, 1)
    shares = np.repeat(steps, np.prod(size)).astype(np.float32)
    boxes = jax.jit(jax.vmap(functools.partial(mixing.outside_box, size)))(shares, centres)
    for outside, share, centre in zip(np.asarray(boxes), shares, centres, strict=True):
        np.testing.assert_array_equal(outside, slow_outside(size, share, centre))


PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
PARTNERS = np.roll(PIXELS, 2, axis=0)


@pytest.mark.parametrize(
    "own",
    [
        np.full((1, 6, 5), 0.3, np.float32),
        np.random.default_rng(1).random((4, 6, 5), np.float32),
    ],
)
def test_blended_pixels_are_rounded(own):
    found = np.array(mixing.blend_pixels(PIXELS, own))
    weights = own[..., None].astype(float)
    exact = weights * PIXELS + (1 - weights) * PARTNERS
    assert found.dtype == np.uint8
    assert np.abs(found - exact).max() <= 0.5 + 1e-4


def test_pixels_of_a_box_are_the_partners():
    outside = np.arange(30).reshape(1, 6, 5) % 2
    expected = np.where(outside[..., None], PIXELS, PARTNERS)
    found = mixing.blend_pixels(PIXELS, outside.astype(np.float32))
    np.testing.assert_array_equal(found, expected)


def test_partners_and_their_keys():
    assert mixing.partners(jnp.arange(6)).tolist() == [3, 4, 5, 0, 1, 2]
    keys = jax.random.split(jax.random.key(0), 6)
    paired = jax.random.key_data(mixing.pair_keys(keys))
    first = jax.random.key_data(keys)[:3]
    np.testing.assert_array_equal(paired, np.concatenate([first, first]))


def drawn_weights(size=(6, 8), **options) -> np.ndarray:
    """The weights of 4,000 draws, whose means are checked."""
    options = {"mixup": 0.8, "cutmix": 1.0, "switch": 0.5} | options
    draw = jax.jit(functools.partial(mixing.own_weights, size=size, **options))
    keys = jax.random.split(jax.random.key(0), 4000)
    weights, shares = (np.array(values) for values in draw(keys))
    np.testing.assert_allclose(shares, weights.mean((1, 2), dtype=np.float64), rtol=1e-6)
    return weights


def test_mixup_draws():
    """Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)); the same share of every pixel."""
    weights = drawn_weights(cutmix=0.0)
    assert weights.shape == (4000, 6, 8)
    assert (weights == weights[:, :1, :1]).all()
    assert weights.mean() == pytest.approx(0.5, abs=0.03)
    assert weights.var() == pytest.approx(1 / 10.4, abs=0.005)


def test_cutmix_draws():
    """Boxes that the borders cut take less than the half that is drawn on average: timm's rand_bbox
    gives 0.6."""
    weights = drawn_weights(mixup=0.0, size=(24, 32))
    assert set(np.unique(weights)) == {0, 1}
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(4000):
        share = rng.beta(1, 1)
        centre = (rng.integers(24), rng.integers(32))
        shares.append(slow_outside((24, 32), share, centre).mean())
    assert weights.mean() == pytest.approx(np.mean(shares), abs=0.02)
    assert weights.mean((1, 2)).std() == pytest.approx(np.std(shares), abs=0.02)


def test_switch():
    weights = drawn_weights(switch=0.3)
    is_cut = ((weights == 0) | (weights == 1)).all((1, 2))
    assert is_cut.mean() == pytest.approx(0.3, abs=0.03)


@pytest.fixture
def mixed(tmp_path):
    """A classifier that is trained on mixed images, and a batch with keys."""
    config = tiny.image_config(dtype="float64", remat="none", spatial_init_std=0.1)
    config.augment.update(mixup=0.8, cutmix=1.0)
    config.optimizer.label_smoothing = 0.1
    task, data = tiny.open_task(config, tmp_path)
    with data.train_batches(0, 0, 1) as batches:
        batch = next(batches)
    return task, {**batch, "key": jax.random.split(jax.random.key(7), 8)}


def expected_loss(task, params, batch, own: np.ndarray) -> tuple[float, int]:
    """By hand, from the weights of pixels [8, height, width]: the summed loss, and the hits of the
    label that prevails."""
    images = []
    targets = []
    prevailing = []
    for index in range(8):
        other = (index + 4) % 8
        weight = own[index][..., None]
        image = weight * batch["image"][index] + (1 - weight) * batch["image"][other]
        images.append(np.rint(image).astype(np.uint8))
        share = own[index].mean()
        target = np.full(10, 0.01)
        target[batch["label"][index]] += 0.9 * share
        target[batch["label"][other]] += 0.9 * (1 - share)
        targets.append(target)
        prevailing.append(batch["label"][index if share >= 0.5 else other])
    logits = np.array(jax.jit(task.apply)(params, np.stack(images)))
    normalised = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -(np.stack(targets) * normalised).sum(), (logits.argmax(-1) == prevailing).sum()


def test_backward_keeps_mixed_images_as_bytes(mixed):
    task, batch = mixed

    def loss(params):
        return task.loss(params, task.mix(batch, jax.random.key(3)))[0]

    def backward(params):
        return jax.vjp(loss, params)[1]

    with jax.enable_x64(True):
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        kept = jax.tree.leaves(jax.eval_shape(backward, shapes))
    of_images = [leaf for leaf in kept if leaf.shape == batch["image"].shape]
    assert {leaf.dtype.name for leaf in of_images} == {"uint8"}


@pytest.mark.parametrize(("mode", "switch", "draws"), [("batch", 0.0, 1), ("pair", 1.0, 4)])
def test_loss(mixed, mode, switch, draws):
    task, batch = mixed
    task.config.augment.update(mixing=mode, switch=switch)
    key = jax.random.key(3)
    keys = [key] * 8 if mode == "batch" else list(batch["key"][:4]) * 2
    draw = functools.partial(mixing.own_weights, size=(8, 8), mixup=0.8, cutmix=1.0, switch=switch)

    @jax.jit  # the draws, which are most of it, are compiled once
    def loss_and_weights(params, batch):
        return task.loss(params, task.mix(batch, key)), draw(jnp.stack(keys))[0]

    with jax.enable_x64(True):
        params = tiny.random_params(task.shapes())
        (total, sums), own = jax.device_get(loss_and_weights(params, batch))
        loss, hits = expected_loss(task, params, batch, own)
    assert len(np.unique(own, axis=0)) == draws
    assert float(total) == float(sums["loss"][0]) == pytest.approx(loss, rel=1e-6)
    assert float(sums["accuracy"][0]) == hits
    assert float(sums["loss"][1]) == 8


def test_batches_without_mixing_stay_as_they_are(mixed):
    task, batch = mixed
    task.config.augment.update(mixup=0.0, cutmix=0.0)
    assert task.mix(batch, jax.random.key(0)) is batch


def test_pairs_are_the_same_however_the_batch_is_cut(mixed):
    """In four microbatches of a pair each; in float64, so that sums in another order agree."""
    task, batch = mixed
    task.config.augment.mixing = "pair"
    found = []
    with jax.enable_x64(True):
        params = tiny.random_params(task.shapes())
        for microbatches in (1, 4):

            @jax.jit
            def gradients(params, batch, microbatches=microbatches):
                whole = task.mix(batch, jax.random.key(2))
                return step.gradients(task, params, whole, microbatches, Partition.make())

            found.append(jax.device_get(gradients(params, batch)))
    (expected, sums), (cut, cut_sums) = found
    assert cut_sums["accuracy"] == sums["accuracy"]
    assert cut_sums["loss"][0] == pytest.approx(sums["loss"][0], rel=1e-6)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-8)
    jax.tree.map(close, cut, expected)


def test_an_odd_microbatch_is_refused():
    config = gmlp_config.default(task="image_classification")
    config.batch_size = 6
    config.optimizer.grad_accum_steps = 2
    gmlp_config.validate(config)
    config.augment.cutmix = 1.0
    assert raised(ConfigError, gmlp_config.validate, config).startswith("config.batch_size is 6: ")


DEVICES = """
import jax

from gmlp_flax.training import step
from gmlp_flax.training.partition import Partition
from tests.training import tiny

config = tiny.image_config(remat="none", spatial_init_std=0.1)
config.augment.update(mixup=0.8, cutmix=1.0, mixing="pair")
task, data = tiny.open_task(config, "")
partition = Partition.make()
training = step.Training(task, partition)
state = training.init(jax.random.key(0))
compiled = None
losses = []
with data.train_batches(0, 0, 1) as batches:
    for _ in range(3):
        batch = partition.put_batch(next(batches))
        compiled = compiled or training.step.lower(state, batch).compile()
        state, window = compiled(state, batch)
        losses.append(float(window["loss"][0]))
lines = [line for line in compiled.as_text().splitlines() if "8,8,1]" in line]
assert not any("all-gather" in line for line in lines), lines
are_exchanged = any(" collective-permute" in line and "u8[" in line for line in lines)
assert are_exchanged == (jax.device_count() > 1), lines
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
