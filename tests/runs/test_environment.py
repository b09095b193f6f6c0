"""Effects of the user's environment variables on a run: none, or one line before anything is
written."""

import os
import shlex
import subprocess
import sys

import pytest

from tests.selection import marked_unless

TRAIN = ("train", "--config=quickstart_image", "--config.steps=1", "--config.batch_size=8")
SMALL = ("--config.model.layers=1", "--config.eval.every=0")

# Settings -> what the error names; "" if the run finishes.
SETTINGS = {
    "JAX_PLATFORMS=nonsense": "JAX_PLATFORMS=nonsense",
    "JAX_PLATFORMS=cuda": "JAX_PLATFORMS=cuda",
    "JAX_PLATFORMS=rocm CUDA_VISIBLE_DEVICES=7": "JAX_PLATFORMS=rocm CUDA_VISIBLE_DEVICES=7",
    "JAX_ENABLE_X64=maybe": "JAX_ENABLE_X64=maybe",
    "JAX_NUM_CPU_DEVICES=many": "JAX_NUM_CPU_DEVICES=many",
    "JAX_DEFAULT_MATMUL_PRECISION=best": "JAX_DEFAULT_MATMUL_PRECISION=best",
    "XLA_FLAGS=nonsense": "XLA_FLAGS=nonsense",
    "XLA_FLAGS=--xla_nonsense=1": "--xla_nonsense=1",
    "XLA_FLAGS='--xla_cpu_enable_fast_math=false --xla_cpu_nonsense=1'": "--xla_cpu_nonsense=1",
    "XLA_FLAGS=--xla_cpu_enable_fast_math=false": "",
    "CUDA_VISIBLE_DEVICES=7": "",
    "PYTHONWARNINGS=error": "",
    "LC_ALL=xx_YY.nonsense": "",
    "PYTHONUTF8=0 LC_ALL=POSIX": "",
    "TMPDIR=/nonexistent": "",
    "HOME=/nonexistent": "",
    "HOME=": "",
    "JAX_COMPILATION_CACHE_DIR=/proc/nothing": "",
    "MPLBACKEND=nonsense": "",
    "PYTHONIOENCODING=ascii": "",
}


# JAX's names, XLA's flags, folders.
KEPT = ("JAX_PLATFORMS=cuda", "XLA_FLAGS=--xla_nonsense=1", "TMPDIR=/nonexistent")


@pytest.mark.slow
@pytest.mark.parametrize("settings", marked_unless(KEPT, SETTINGS, pytest.mark.nightly))
def test_environment_has_no_effect_or_is_refused_in_one_line(settings, tmp_path):
    named = SETTINGS[settings]
    environment = dict(os.environ)
    for setting in shlex.split(settings):
        name, _, value = setting.partition("=")
        environment[name] = value
    command = [sys.executable, "-m", "gmlp_flax", *TRAIN, *SMALL, f"--workdir={tmp_path}/run"]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert "Traceback" not in ended.stderr
    if not named:
        assert ended.returncode == 0, ended.stderr
        assert (tmp_path / "run" / "result.json").exists()
        return
    assert ended.returncode == 2
    last = ended.stderr.splitlines()[-1]
    assert named in last
    assert not (tmp_path / "run").exists()
