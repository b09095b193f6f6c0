"""Runs small enough to train in a test, made once a session; and how programs are compiled.

Programs of tests take longer to compile than to run, in this process and in the commands that it
starts: they are compiled without optimising them, but for those of tests/models, of the killed runs
that resume exactly, and for TPUs. XLA's newer code generator, which takes three times as long, is
off where its flag exists.
"""

import gc
import importlib.metadata
import os

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # Read when JAX is imported.
if importlib.metadata.version("jaxlib").startswith("0.10."):  # an unknown flag ends the process
    quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick}".strip()

import hypothesis
import jax
import pytest

from gmlp_flax import config
from gmlp_flax.benchmarks.beside_torch import import_beside_torch
from gmlp_flax.training import loop
from tests import preloaded

hypothesis.settings.register_profile("tests", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("tests")


def small_text_config(cache: str):
    """A gMLP of two layers on the embedded text."""
    options = config.from_file("configs/quickstart_text.py")
    options.steps = 12
    options.batch_size = 8
    options.model.update(layers=2, length=32, d_model=16, d_ffn=32, vocab_size=600)
    options.log.every, options.eval.every, options.checkpoint.every = 4, 6, 6
    options.data.cache = str(cache)
    return options


@pytest.fixture(scope="session", autouse=True)
def programs():
    """Programs that tests have in common, as those of runs with one config, are compiled once, here
    or in the commands that tests start, and kept for the next session."""
    variables = preloaded.environment()
    jax.config.update("jax_compilation_cache_dir", variables["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    yield
    preloaded.programs().keep()


@pytest.fixture(scope="module", autouse=True)
def small_heap():
    """What earlier modules have left is not swept again whenever Python collects garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)  # tracing makes many objects and few cycles


@pytest.fixture(scope="module")
def optimised():
    """Programs of a module's own process are compiled as users' are."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def transformers():
    """The package."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed (extra: parity)")
    return import_beside_torch("transformers")


@pytest.fixture(scope="session")
def printed_sizes():
    """What `gmlp sizes` prints."""
    done = preloaded.gmlp("sizes")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def text_run(tmp_path_factory):
    """The folder of a finished language-model run, with checkpoints at steps 6 and 12."""
    folder = tmp_path_factory.mktemp("text")
    loop.train(small_text_config(folder / "cache"), str(folder / "run"))
    return folder / "run"


@pytest.fixture(scope="session")
def image_run(tmp_path_factory):
    """The folder of a finished classifier of the embedded digits."""
    folder = tmp_path_factory.mktemp("image") / "run"
    options = config.from_file("configs/quickstart_image.py")
    options.steps = 12
    options.model.update(layers=2, d_model=16, d_ffn=32)
    options.optimizer.ema = 0.5
    loop.train(options, str(folder))
    return folder
