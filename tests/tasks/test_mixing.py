"""Mixup and CutMix: boxes, shares and blended pixels against slow references, the loss of mixed
batches by hand, and pairs that do not depend on how a batch is divided."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

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
    kept_share = np.float32(1) - np.float32(share)
    side_share = np.sqrt(kept_share)
    kept_height = int(height * side_share)
    rows = inside(row_center, kept_height, height)
    kept_width = int(width * side_share)
    columns = inside(column_center, kept_width, width)
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
    with_one = np.append(hundredths, 1)
    every_share = with_one.astype(np.float32)
    repeated = every_center * len(every_share)
    centers = np.array(repeated)
    shares = np.repeat(every_share, len(every_center))
    outside_box = functools.partial(mixing.outside_box, size)
    outside_boxes = jax.jit(jax.vmap(outside_box))
    boxes = np.asarray(outside_boxes(shares, centers))
    for box, share, center in zip(boxes, shares, centers, strict=True):
        expected = slow_outside(size, share, center)
        assert_array_equal(box, expected)


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
    pixels = mixing.blend_pixels(PIXELS, shares)
    blended = np.array(pixels)
    weights = shares[..., None].astype(float)
    partners = (1 - weights) * PARTNERS
    exact = weights * PIXELS + partners
    assert blended.dtype == np.uint8
    errors = np.abs(blended - exact)
    assert errors.max() <= 0.5 + 1e-4


def test_pixels_in_the_box_come_from_the_partner():
    numbers = np.arange(30).reshape(1, 6, 5)
    outside = numbers % 2
    is_outside = outside[..., None] == 1
    expected = np.where(is_outside, PIXELS, PARTNERS)
    weights = outside.astype(np.float32)
    found = mixing.blend_pixels(PIXELS, weights)
    assert_array_equal(found, expected)


def test_partners():
    partners = mixing.partners(jnp.arange(6))
    assert partners.tolist() == [3, 4, 5, 0, 1, 2]


def test_partners_have_the_same_key():
    keys = by_hand.keys(6)
    paired = jax.random.key_data(mixing.pair_keys(keys))
    first = jax.random.key_data(keys)[:3]
    assert_array_equal(paired, np.concatenate([first, first]))


def drawn_weights(size=(6, 8), **options) -> np.ndarray:
    """The weights of 4,000 draws, whose means are checked."""
    options = {"mixup": 0.8, "cutmix": 1.0, "switch": 0.5} | options
    partial = functools.partial(mixing.keep_weights, size=size, **options)
    draw = jax.jit(partial)
    keys = by_hand.keys(4000)
    drawn = draw(keys)
    weights, shares = jax.device_get(drawn)
    means = weights.mean((1, 2), dtype=np.float64)
    assert_allclose(shares, means, rtol=1e-6)
    return weights


def test_mixup_draws():
    """Beta(a, a) has mean 1/2 and variance 1 / (4 (2 a + 1)). All pixels have the same share."""
    weights = drawn_weights(cutmix=0.0)
    assert weights.shape == (4000, 6, 8)
    corners = weights[:, :1, :1]
    assert (weights == corners).all()
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
        row = rng.integers(24)
        center = (row, rng.integers(32))
        outside = slow_outside((24, 32), share, center)
        shares.append(outside.mean())
    drawn_shares = weights.mean((1, 2))
    mean = drawn_shares.mean()
    deviation = drawn_shares.std()
    expected_mean = np.mean(shares)
    assert mean == pytest.approx(expected_mean, abs=0.02)
    expected_deviation = np.std(shares)
    assert deviation == pytest.approx(expected_deviation, abs=0.02)


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
    keys = by_hand.keys(8, seed=7)
    return task, {**batch, "key": keys}


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
        partner_pixels = (1 - weight) * pixels[partner]
        image = weight * pixels[index] + partner_pixels
        rounded = np.rint(image)
        images.append(rounded.astype(np.uint8))
        share = weights[index].mean()
        target = np.full(10, 0.01)
        label_share = 0.9 * share
        partner_label_share = 0.9 * (1 - share)
        target[labels[index]] += label_share
        target[labels[partner]] += partner_label_share
        targets.append(target)
        stronger = index if share >= 0.5 else partner
        dominant.append(labels[stronger])
    apply = jax.jit(task.apply)
    logits = apply(params, np.stack(images))
    log_shares = by_hand.log_softmax(logits)
    losses = -np.stack(targets) * log_shares
    hits = by_hand.are_hits(logits, dominant)
    return losses.sum(), hits.sum()


def test_backward_pass_keeps_mixed_images_as_uint8(mixed):
    task, batch = mixed

    def loss(params):
        key = jax.random.key(3)
        mixed_batch = task.mix(batch, key)
        total, _ = task.loss(params, mixed_batch)
        return total

    def backward(params):
        _, pull_back = jax.vjp(loss, params)
        return pull_back

    with jax.enable_x64(True):
        key = jax.random.key(0)
        shapes = jax.eval_shape(task.init, key)
        residuals = jax.eval_shape(backward, shapes)
        kept = jax.tree.leaves(residuals)
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
        stacked_keys = jnp.stack(keys)
        weights, _ = draw(stacked_keys)
        mixed_batch = task.mix(batch, key)
        return task.loss(params, mixed_batch), weights

    with jax.enable_x64(True):
        params = tiny.random_params(task.shapes())
        results = jax.device_get(loss_and_weights(params, batch))
        (total, sums), weights = results
        loss, hits = expected_loss(task, params, batch, weights)
    different = np.unique(weights, axis=0)
    assert len(different) == draws
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
        key = jax.random.key(2)
        whole = task.mix(batch, key)
        return step.gradients(task, params, whole, microbatches, Partition.make())

    with jax.enable_x64(True):
        params = tiny.random_params(task.shapes())
        of_whole = gradients(params, batch, 1)
        expected, sums = jax.device_get(of_whole)
        of_parts = gradients(params, batch, 4)
        cut, cut_sums = jax.device_get(of_parts)
    assert cut_sums["accuracy"] == sums["accuracy"]
    loss = by_hand.total(sums, "loss")
    total = by_hand.total(cut_sums, "loss")
    assert total == pytest.approx(loss, rel=1e-6)
    close = functools.partial(assert_allclose, rtol=1e-5, atol=1e-8)
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
    assert_allclose(losses[4], on_one_device, rtol=1e-5)
