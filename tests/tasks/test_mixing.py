"""Mixup and CutMix: boxes, shares and blended pixels against slow references, the loss of mixed
batches by hand, and pairs that do not depend on how a batch is divided."""

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
from tests.tasks import by_hand
from tests.training import tiny


def slow_outside(size: tuple[int, int], share: float, center: tuple[int, int]) -> np.ndarray:
    """CutMix's box, pixel by pixel, in Python integers."""
    height, width = size
    row_center, column_center = center
    side_share = np.sqrt(np.float32(1) - np.float32(share))
    rows = inside(row_center, int(height * side_share), height)
    columns = inside(column_center, int(width * side_share), width)
    outside = np.ones(size)
    for row in rows:
        for column in columns:
            outside[row, column] = 0
    return outside


def inside(center: int, side: int, size: int) -> range:
    """The pixels of a side around a center that are at least 0 and less than `size`."""
    before = side // 2
    after = (side + 1) // 2
    first = max(0, center - before)
    end = min(size, center + after)
    return range(first, end)


@pytest.mark.parametrize("size", [(1, 1), (5, 12), (8, 8)])
def test_boxes(size):
    """Around every center, for every hundredth of the area."""
    every_center = list(np.ndindex(size))
    # Between the shares at which a side is a whole number.
    hundredths = np.arange(100) / 100 + 1e-4
    every_share = np.append(hundredths, 1).astype(np.float32)
    centers = np.array(every_center * len(every_share))
    shares = np.repeat(every_share, len(every_center))
    outside_box = functools.partial(mixing.outside_box, size)
    outside_boxes = jax.jit(jax.vmap(outside_box))
    boxes = np.asarray(outside_boxes(shares, centers))
    for box, share, center in zip(boxes, shares, centers, strict=True):
        expected = slow_outside(size, share, center)
        np.testing.assert_array_equal(box, expected)


RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
PARTNERS = np.roll(PIXELS, 2, axis=0)


@pytest.mark.parametrize(
    "shares",
    [
        np.full((1, 6, 5), 0.3, np.float32),
        np.random.default_rng(1).random((4, 6, 5), np.float32),
    ],
    ids=["constant", "random"],
)
def test_blended_pixels_are_rounded(shares):
    blended = np.array(mixing.blend_pixels(PIXELS, shares))
    weights = shares[..., None].astype(float)
    exact = weights * PIXELS + (1 - weights) * PARTNERS
    assert blended.dtype == np.uint8
    errors = np.abs(blended - exact)
    assert errors.max() <= 0.5 + 1e-4


def test_pixels_in_the_box_come_from_the_partner():
    outside = np.arange(30).reshape(1, 6, 5) % 2
    is_outside = outside[..., None] == 1
    expected = np.where(is_outside, PIXELS, PARTNERS)
    found = mixing.blend_pixels(PIXELS, outside.astype(np.float32))
    np.testing.assert_array_equal(found, expected)


def test_partners():
    partners = mixing.partners(jnp.arange(6))
    assert partners.tolist() == [3, 4, 5, 0, 1, 2]


def test_partners_have_the_same_key():
    keys = by_hand.keys(6)
    paired = jax.random.key_data(mixing.pair_keys(keys))
    first = jax.random.key_data(keys)[:3]
    np.testing.assert_array_equal(paired, np.concatenate([first, first]))


def drawn_weights(size=(6, 8), **options) -> np.ndarray:
    """The weights of 4,000 draws, whose means are checked."""
    options = {"mixup": 0.8, "cutmix": 1.0, "switch": 0.5} | options
    draw = jax.jit(functools.partial(mixing.keep_weights, size=size, **options))
    keys = by_hand.keys(4000)
    weights, shares = jax.device_get(draw(keys))
    means = weights.mean((1, 2), dtype=np.float64)
    np.testing.assert_allclose(shares, means, rtol=1e-6)
    return weights


def test_mixup_draws():
    """Beta(a, a) has mean 1/2 and variance 1 / (4 (2 a + 1)). All pixels have the same share."""
    weights = drawn_weights(cutmix=0.0)
    assert weights.shape == (4000, 6, 8)
    assert (weights == weights[:, :1, :1]).all()
    assert weights.mean() == pytest.approx(0.5, abs=0.03)
    assert weights.var() == pytest.approx(1 / 10.4, abs=0.005)


@pytest.mark.slow
def test_cutmix_draws():
    """Boxes that are cut at the borders take less than the half that is drawn on average: timm's
    rand_bbox gives 0.6."""
    weights = drawn_weights(mixup=0.0, size=(24, 32))
    assert set(np.unique(weights)) == {0, 1}
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(4000):
        share = rng.beta(1, 1)
        center = (rng.integers(24), rng.integers(32))
        outside = slow_outside((24, 32), share, center)
        shares.append(outside.mean())
    drawn_shares = weights.mean((1, 2))
    mean = drawn_shares.mean()
    deviation = drawn_shares.std()
    assert mean == pytest.approx(np.mean(shares), abs=0.02)
    assert deviation == pytest.approx(np.std(shares), abs=0.02)


def test_mixup_and_cutmix_switch():
    weights = drawn_weights(switch=0.3)
    is_box = (weights == 0) | (weights == 1)
    is_cut = is_box.all((1, 2))
    assert is_cut.mean() == pytest.approx(0.3, abs=0.03)


@pytest.fixture
def mixed(tmp_path):
    """A classifier trained on mixed images, and a batch with keys."""
    config = tiny.image_config(dtype="float64", remat="none", spatial_init_std=0.1)
    config.augment.update(mixup=0.8, cutmix=1.0)
    config.optimizer.label_smoothing = 0.1
    task, data = tiny.open_task(config, tmp_path)
    batch = by_hand.first_batch(data)
    return task, {**batch, "key": by_hand.keys(8, seed=7)}


def expected_loss(task, params, batch, weights: np.ndarray) -> tuple[float, int]:
    """The summed loss and the hits of the dominant label, computed from the weights of pixels [8,
    height, width]."""
    pixels = batch["image"]
    labels = batch["label"]
    images = []
    targets = []
    dominant = []
    for index in range(8):
        partner = (index + 4) % 8
        weight = weights[index][..., None]
        image = weight * pixels[index] + (1 - weight) * pixels[partner]
        images.append(np.rint(image).astype(np.uint8))
        share = weights[index].mean()
        target = np.full(10, 0.01)
        target[labels[index]] += 0.9 * share
        target[labels[partner]] += 0.9 * (1 - share)
        targets.append(target)
        stronger = index if share >= 0.5 else partner
        dominant.append(labels[stronger])
    apply = jax.jit(task.apply)
    logits = apply(params, np.stack(images))
    losses = -np.stack(targets) * by_hand.log_softmax(logits)
    hits = by_hand.are_hits(logits, dominant)
    return losses.sum(), hits.sum()


def test_backward_pass_keeps_mixed_images_as_uint8(mixed):
    task, batch = mixed

    def loss(params):
        mixed_batch = task.mix(batch, jax.random.key(3))
        total, _ = task.loss(params, mixed_batch)
        return total

    def backward(params):
        _, pull_back = jax.vjp(loss, params)
        return pull_back

    with jax.enable_x64(True):
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        kept = jax.tree.leaves(jax.eval_shape(backward, shapes))
    dtypes = set()
    for leaf in kept:
        if leaf.shape == batch["image"].shape:
            dtypes.add(leaf.dtype.name)
    assert dtypes == {"uint8"}


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "switch", "draws"), [("batch", 0.0, 1), ("pair", 1.0, 4)])
def test_loss(mixed, mode, switch, draws):
    task, batch = mixed
    task.config.augment.update(mixing=mode, switch=switch)
    key = jax.random.key(3)
    if mode == "batch":
        keys = [key] * 8
    else:
        keys_of_pairs = list(batch["key"][:4])
        keys = keys_of_pairs * 2
    draw = functools.partial(mixing.keep_weights, size=(8, 8), mixup=0.8, cutmix=1.0, switch=switch)

    @jax.jit  # compiles the draws, which take most of the time, once
    def loss_and_weights(params, batch):
        weights, _ = draw(jnp.stack(keys))
        mixed_batch = task.mix(batch, key)
        return task.loss(params, mixed_batch), weights

    with jax.enable_x64(True):
        params = tiny.random_params(task.shapes())
        results = jax.device_get(loss_and_weights(params, batch))
        (total, sums), weights = results
        loss, hits = expected_loss(task, params, batch, weights)
    assert len(np.unique(weights, axis=0)) == draws
    expected = pytest.approx(loss, rel=1e-6)
    assert float(total) == expected
    assert by_hand.total(sums, "loss") == expected
    assert by_hand.total(sums, "accuracy") == hits
    assert by_hand.weight(sums, "loss") == 8


def test_batches_without_mixing_are_unchanged(mixed):
    task, batch = mixed
    task.config.augment.update(mixup=0.0, cutmix=0.0)
    assert task.mix(batch, jax.random.key(0)) is batch


@pytest.mark.slow
def test_pairs_do_not_depend_on_the_microbatches(mixed):
    """With four microbatches of a pair each, in float64, so that the order of sums does not matter."""
    task, batch = mixed
    task.config.augment.mixing = "pair"

    @functools.partial(jax.jit, static_argnums=2)
    def gradients(params, batch, microbatches):
        whole = task.mix(batch, jax.random.key(2))
        return step.gradients(task, params, whole, microbatches, Partition.make())

    with jax.enable_x64(True):
        params = tiny.random_params(task.shapes())
        expected, sums = jax.device_get(gradients(params, batch, 1))
        cut, cut_sums = jax.device_get(gradients(params, batch, 4))
    assert cut_sums["accuracy"] == sums["accuracy"]
    loss = by_hand.total(sums, "loss")
    assert by_hand.total(cut_sums, "loss") == pytest.approx(loss, rel=1e-6)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-8)
    jax.tree.map(close, cut, expected)


def test_odd_microbatch_is_refused():
    config = gmlp_config.default(task="image_classification")
    config.batch_size = 6
    config.optimizer.grad_accum_steps = 2
    gmlp_config.validate(config)
    config.augment.cutmix = 1.0
    message = raised(ConfigError, gmlp_config.validate, config)
    assert message.startswith("config.batch_size is 6: ")


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


@pytest.mark.nightly
def test_number_of_devices_does_not_change_the_pairs():
    """Images move between devices as bytes, each once, and none is gathered."""
    losses = {}
    for devices in (1, 4):
        variables = {
            "XLA_FLAGS": preloaded.devices(devices),
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        }
        done = preloaded.run("-c", DEVICES, **variables)
        assert done.returncode == 0, done.stderr
        losses[devices] = np.array(done.stdout.split(), float)
    on_one_device = losses[1]
    assert len(set(on_one_device)) == 3
    np.testing.assert_allclose(losses[4], on_one_device, rtol=1e-5)
