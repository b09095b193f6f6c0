"""The platform that is chosen if the user chooses none."""

import fnmatch
import os
import subprocess
import sys

import pytest

from gmlp_flax.processes import platforms


@pytest.mark.parametrize(
    ("given", "devices", "libtpu", "taken"),
    [
        (None, (), True, "cpu"),
        (None, ("/dev/nvidia0",), True, None),
        (None, ("/dev/accel3",), True, None),
        (None, (), False, None),
        ("tpu,cpu", (), True, "tpu,cpu"),
    ],
)
def test_a_machine_without_accelerators_does_not_ask_libtpu(given, devices, libtpu, taken, monkeypatch):
    monkeypatch.setattr(platforms.glob, "glob", lambda pattern: fnmatch.filter(devices, pattern))
    monkeypatch.setattr(platforms.importlib.util, "find_spec", lambda name: libtpu or None)
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "jax")
    environment = {} if given is None else {"JAX_PLATFORMS": given}
    monkeypatch.setattr(os, "environ", environment)
    platforms.choose()
    assert environment.get("JAX_PLATFORMS") == taken


@pytest.mark.skipif(platforms.exists(platforms.ACCELERATORS), reason="this machine has an accelerator")
@pytest.mark.parametrize(
    "imports",
    ["from gmlp_flax.processes import platforms; import jax", "import jax; from gmlp_flax.processes import platforms"],
)
def test_jax_takes_the_cpu_in_silence(imports):
    """Whether JAX is imported before or after, with libtpu (if installed) and without a TPU."""
    program = f"{imports}; platforms.choose(); print(jax.default_backend())"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == ("cpu\n", "")


@pytest.mark.skipif(platforms.exists(platforms.ACCELERATORS), reason="this machine has an accelerator")
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt")
def test_freed_arrays_are_not_faulted_in_again():
    """Twenty arrays of 40 MB, one after another: anew they touch 10,000 pages each."""
    program = """
import resource, sys, threading
from gmlp_flax.processes import platforms
if sys.argv[1] == "kept":
    platforms.keep_freed_memory()
def work():
    for _ in range(20):
        b"x" * 40_000_000
thread = threading.Thread(target=work)  # as XLA's threads, whose heaps are not the first one
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread.start(); thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    faults = {}
    for how in ("freed", "kept"):
        command = [sys.executable, "-c", program, how]
        faults[how] = int(subprocess.run(command, capture_output=True, check=True, env=environment).stdout)
    assert faults["kept"] < faults["freed"] / 5, faults
