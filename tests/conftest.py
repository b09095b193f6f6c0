"""Runs small enough to train in a test, made once a session; and how programs are compiled.

Programs of tests take longer to compile than to run, in this process and in the commands that it
starts: they are compiled without optimizing them, but for those of tests/models, of the killed runs
that resume exactly, and for TPUs. XLA's newer code generator, which takes three times as long, is
off where its flag exists.
"""

import gc
import importlib.metadata
import os
import shutil
from pathlib import Path

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # Read when JAX is imported.
os.environ.setdefault("JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS", "0")  # 5 % of the tests' time
if importlib.metadata.version("jaxlib").startswith("0.10."):  # an unknown flag ends the process
    quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick}".strip()

import hypothesis
import jax
import pytest

from gmlp_flax import config
from gmlp_flax.api import factory
from gmlp_flax.benchmarks.beside_torch import import_beside_torch
from gmlp_flax.training import loop
from tests import preloaded
from tests.once import made_once

hypothesis.settings.register_profile("tests", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("tests")


def small_text_config(cache: str):
    """A gMLP of two layers on the embedded text."""
    options = config.from_file("configs/quickstart_text.py")
    options.steps = 12
    options.batch_size = 8
    options.model.update(layers=2, length=32, d_model=16, d_ffn=32, vocab_size=600)
    options.log.every = 4
    options.eval.every = 6
    options.checkpoint.every = 6
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
def shared_programs(programs):
    """A module finds what other workers have compiled, and they find what it compiles."""
    preloaded.programs().fetch()
    yield
    preloaded.programs().keep()


@pytest.fixture(scope="module", autouse=True)
def small_heap():
    """What earlier modules have left is not swept again whenever Python collects garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)  # tracing makes many objects and few cycles


@pytest.fixture(scope="module")
def optimized():
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
def printed_sizes(tmp_path_factory):
    """What `gmlp sizes` prints."""

    def make(folder):
        done = preloaded.gmlp("sizes")
        assert done.returncode == 0, done.stderr
        (folder / "sizes.txt").write_text(done.stdout)

    return (made_once(tmp_path_factory, "sizes", make) / "sizes.txt").read_text()


@pytest.fixture(scope="session")
def text_run(tmp_path_factory):
    """The folder of a finished language-model run, with checkpoints at steps 6 and 12."""

    def make(folder):
        loop.train(small_text_config(folder / "cache"), str(folder / "run"))

    return copied(made_once(tmp_path_factory, "text_run", make), tmp_path_factory)


@pytest.fixture(scope="session")
def image_run(tmp_path_factory):
    """The folder of a finished classifier of the embedded digits."""

    def make(folder):
        options = config.from_file("configs/quickstart_image.py")
        options.steps = 12
        options.model.update(layers=2, d_model=16, d_ffn=32)
        options.optimizer.ema = 0.5
        loop.train(options, str(folder / "run"))

    return copied(made_once(tmp_path_factory, "image_run", make), tmp_path_factory)


@pytest.fixture(scope="session")
def causal_model(tmp_path_factory):
    """A causal model of bytes, of 16 tokens."""
    options = config.default(task="causal_lm")
    options.model.update(layers=1, d_model=8, d_ffn=16, length=16, causal=True)
    path = tmp_path_factory.mktemp("causal") / "config.json"
    path.write_text(config.to_json(options))
    return factory.create(str(path), tokenizer="bytes")


def copied(made: Path, folders: pytest.TempPathFactory) -> Path:
    """This worker's copy of a run: commands that read it may lock it."""
    return shutil.copytree(made / "run", folders.mktemp(made.name) / "run")
