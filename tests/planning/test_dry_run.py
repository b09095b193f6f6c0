"""Training steps compiled from shapes alone, for this machine and for TPU slices that do not exist
here."""

import importlib.util
import json
import math
import re
from unittest import mock

import jax
import pytest

from gmlp_flax import config, tasks
from gmlp_flax.errors import RunError, install
from gmlp_flax.paper.published import VOCAB_SIZE
from gmlp_flax.planning import dry_run
from gmlp_flax.training.partition import Partition
from tests import preloaded
from tests.commands.test_plan import GOLDEN

Shape = tuple[int, ...]

pytestmark = pytest.mark.usefixtures("optimized")

QUICK = {"xla_backend_optimization_level": 0}  # of machine code: the program of arrays is the same
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)


def text_config(name: str):
    """The config of a text model of Table 5 at a batch of 2."""
    options = config.from_file("configs/c4_bert.py", name)
    options.batch_size = 2
    return options


def without_data(options):
    return tasks.find(options.task)(options)


def array_shapes(program: str) -> set[Shape]:
    """The shapes of all arrays in the text of a compiled program, of any type, in tuples and
    fusions too."""
    without_names = re.sub(r'"[^"]*"', "", program)
    shapes = set()
    for dims in re.findall(r"\b[a-z]\w*\[(\d[\d,]*)\]", without_names):
        sizes = [int(size) for size in dims.split(",")]
        shapes.add(tuple(sizes))
    return shapes


def logits(program: str, batch: int, positions: int, vocabulary: int = VOCAB_SIZE) -> list[Shape]:
    """Arrays with as many elements as the logits at some positions, for any merging and order of
    their axes."""
    elements = batch * positions * vocabulary
    return [shape for shape in array_shapes(program) if math.prod(shape) == elements]


@pytest.mark.slow
@pytest.mark.smoke
def test_xlarge_compiles_here_and_has_logits_only_at_masked_positions():
    """Arrays of the logits at 77 positions of 4 sequences, and none at all 512."""
    options = text_config("gmlp_xlarge")
    options.batch_size = 4
    compiled = dry_run.lower(options, Partition.make()).compile(QUICK)
    # The arguments are weights and two moments, 12 bytes per parameter, and a batch; no gradients.
    memory = compiled.memory_analysis()
    assert memory.argument_size_in_bytes == pytest.approx(12 * 940_614_768, rel=1e-3)
    program = compiled.as_text()
    batch = options.batch_size
    length = options.model.length
    positions = options.masking.max_predictions
    assert batch == 4
    assert length == 512
    assert positions == 77
    assert options.model.vocab_size == 32_000
    assert logits(program, batch, positions)
    assert not logits(program, batch, length)
    # The embedding table is the largest array with a vocabulary axis.
    sizes = [math.prod(shape) for shape in array_shapes(program) if VOCAB_SIZE in shape]
    table_size = VOCAB_SIZE * options.model.d_model
    assert max(sizes) == table_size < batch * length * VOCAB_SIZE


def test_topologies_that_libtpu_refuses_are_one_line_with_the_nearest_ones(monkeypatch):
    refuse = mock.Mock(side_effect=RuntimeError("no such slice\nand a page of text"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(dry_run.topologies, "get_topology_desc", refuse)
    message = r"'v5e:1x3' \(no such slice\): the nearest are v5e:2x2, v5e:2x4"
    with pytest.raises(RunError, match=message):
        dry_run.devices("v5e:1x3")


def test_missing_libtpu_is_one_line_with_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    advice = re.escape(install("plan"))
    with pytest.raises(RunError, match=rf"^v5e:4x4 needs libtpu.*: {advice}$"):
        dry_run.devices("v5e:4x4")


def printed(program: str) -> str:
    """The last line that a Python program prints, in a process of its own because libtpu ends some
    processes."""
    done = preloaded.run("-c", program, XLA_FLAGS="")  # libtpu refuses the CPU's flags
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


# A block has 4 products, each once forward and twice backward; the stem 1 and 1, the head 1 and 2.
PRODUCTS = 12 + 2 + 3
LOWERED = """
import json, re
from gmlp_flax import config
from gmlp_flax.planning import dry_run
from gmlp_flax.training.partition import Partition
options = config.from_file("configs/imagenet.py", "gmlp_b")
options.batch_size = 4096
lowered = dry_run.lower(options, Partition.make(None, dry_run.devices("v5e:4x8")))
"""


@pytest.mark.slow
@needs_libtpu
def test_no_product_is_computed_twice():
    """gMLP-B at the paper's batch of 4096 in bfloat16 on 32 chips, with mixup and CutMix, as XLA
    gets it."""
    counted = """
products = re.findall(r"stablehlo[.](?:dot_general|convolution) ", lowered.as_text())
print(len(products))
"""
    assert int(printed(LOWERED + counted)) == PRODUCTS


@needs_libtpu
@pytest.mark.nightly
def test_tpu_memory_and_products():
    """The same, compiled, which takes a minute. (`gmlp benchmark memory` compiles gmlp_s as
    well.)"""
    compiled = """
compiled = lowered.compile()
products = len(re.findall(r"= \\S+ (?:dot|convolution)\\(", compiled.as_text()))
print(json.dumps([compiled.memory_analysis().temp_size_in_bytes, products]))
"""
    temporary, products = json.loads(printed(LOWERED + compiled))
    assert temporary <= 9e9
    planned = json.loads(GOLDEN.read_text())["gmlp_b"]["per_chip_bytes"]["temporaries"]
    assert temporary == pytest.approx(planned, rel=0.03)
    assert products == PRODUCTS


@pytest.mark.slow
@needs_libtpu
def test_a_tpu_moves_a_toeplitz_matrix_once():
    """Building W from its taps writes it; the gradient of the taps reads it, if heads do not change
    its layout. As one band of n rows, W moved 14 to 18 times and d W 17 to 27 times."""
    program = """
import json
import jax
from jax.sharding import SingleDeviceSharding
from gmlp_flax.models import toeplitz
from gmlp_flax.planning import dry_run
from gmlp_flax.planning.hlo import Program
n, expand, moved = 1024, jax.vmap(toeplitz.expand), []
chip = SingleDeviceSharding(dry_run.devices("v5e:1x1")[0])
backward = lambda taps, d_w: jax.vjp(expand, taps)[1](d_w)[0]
for heads in (1, 4):
    taps, w = (jax.ShapeDtypeStruct((heads, *shape), "float32", sharding=chip) for shape in ((2 * n - 1,), (n, n)))
    for function, given in ((expand, (taps,)), (backward, (taps, w))):
        text = jax.jit(function).lower(*given).compile().as_text()
        moved.append(Program(text, 1).costs().traffic / (4 * heads * n * n))
print(json.dumps(moved))
"""
    moved = json.loads(printed(program))
    for times, most in zip(moved, (1.2, 4, 1.2, 4), strict=True):
        assert 1 <= times < most


@pytest.mark.slow
def test_memory_of_a_toeplitz_gmlp_grows_as_n():
    """The step of two layers of 16 channels on one sequence of 4,096 and 8,192 tokens, compiled
    here."""
    one_device = Partition.make({"data": 1}, jax.devices()[:1])
    temporaries = []
    for length in ("4096", "8192"):
        options = config.from_file("configs/long_text.py", f"{length},scale=small")
        options.batch_size = 1
        options.masking.max_predictions = 64
        options.model.update(layers=2, d_model=16, d_ffn=32, vocab_size=100)
        lowered = dry_run.lower(options, one_device)
        memory = lowered.compile(QUICK).memory_analysis()
        temporaries.append(memory.temp_size_in_bytes)
    short, long = temporaries
    assert 1.5 < long / short < 2.1


@needs_libtpu
@pytest.mark.nightly  # two minutes of compiling
def test_a_long_toeplitz_product_on_a_tpu_grows_as_n():
    """In blocks, the bytes that move and that are held grow as n from 8,192 to 16,384 tokens; the
    matrix is never made."""
    program = """
import json
import jax
from jax.sharding import SingleDeviceSharding
from gmlp_flax.models import toeplitz
from gmlp_flax.planning import dry_run
from gmlp_flax.planning.hlo import Program
chip, costs = SingleDeviceSharding(dry_run.devices("v5e:1x1")[0]), []
for n in (8192, 16384):
    taps, x = (jax.ShapeDtypeStruct(shape, "bfloat16", sharding=chip) for shape in ((2 * n - 1,), (1, n, 128)))
    compiled = jax.jit(lambda taps, x, g: jax.vjp(toeplitz.apply_blocked, taps, x)[1](g)).lower(taps, x, x).compile()
    costs.append([Program(compiled.as_text(), 1).costs().traffic, compiled.memory_analysis().temp_size_in_bytes])
print(json.dumps(costs))
"""
    (moved, held), (moved_twice, held_twice) = json.loads(printed(program))
    assert moved_twice <= 2.2 * moved
    assert held_twice <= max(2.2 * held, 16384**2 / 20)


def test_batches_have_the_shapes_of_the_task():
    masked_lm = without_data(text_config("gmlp_base"))
    text = dry_run.batch_shapes(masked_lm, 2)
    shapes = {name: leaf.shape for name, leaf in text.items()}
    assert shapes == {"tokens": (2, 512), "index": (2,)}
    options = config.from_file("configs/own_images.py", "gmlp_ti")
    classification = without_data(options)
    images = dry_run.batch_shapes(classification, 1024)
    assert images["image"].shape == (1024, 224, 224, 3)
    assert images["image"].dtype == "uint8"
    task = tasks.find(options.task)(options)
    assert jax.tree.leaves(task.shapes())
