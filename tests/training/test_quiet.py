"""What is muted: Orbax's reports of errors that it raises as well; nothing of ours."""

import fnmatch
import logging as std_logging
import os
import subprocess
import sys
import types

import pytest
from absl import logging

from gmlp_flax.training import quiet


@pytest.fixture
def shown(monkeypatch):
    """What the hook for exceptions that no one can catch passes on."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    handler = logging.get_absl_handler()
    filters = list(handler.filters)
    quiet.install()
    yield found
    handler.filters[:] = filters


@pytest.mark.parametrize(
    ("name", "path", "kept"),
    [
        ("absl", "/env/site-packages/orbax/checkpoint/handlers.py", False),
        ("asyncio", "/usr/lib/python3/asyncio/base_events.py", False),
        ("absl", "/home/orbax/gmlp_flax/training/checkpoint.py", True),
    ],
)
@pytest.mark.usefixtures("shown")
def test_records(name, path, kept):
    record = std_logging.LogRecord(name, std_logging.ERROR, path, 1, "words", (), None)
    assert bool(logging.get_absl_handler().filter(record)) == kept


def unraisable(path: str, error: Exception) -> types.SimpleNamespace:
    code = types.SimpleNamespace(co_filename=path)
    return types.SimpleNamespace(object=types.SimpleNamespace(cr_code=code), exc_value=error)


def test_exceptions_that_no_one_can_catch(shown):
    orbax = unraisable("/env/orbax/checkpoint/async.py", ValueError("flipped"))
    late = unraisable("/ours.py", RuntimeError("Event loop is closed"))
    ours = unraisable("/ours.py", ValueError("flipped"))
    for each in (orbax, late, ours):
        sys.unraisablehook(each)
    assert shown == [ours]


@pytest.mark.parametrize(("given", "devices", "libtpu", "taken"), [
    (None, (), True, "cpu"), (None, ("/dev/nvidia0",), True, None), (None, ("/dev/accel3",), True, None),
    (None, (), False, None), ("tpu,cpu", (), True, "tpu,cpu"),
])
def test_a_machine_without_accelerators_does_not_ask_libtpu(given, devices, libtpu, taken, monkeypatch):
    monkeypatch.setattr(quiet.glob, "glob", lambda pattern: fnmatch.filter(devices, pattern))
    monkeypatch.setattr(quiet.importlib.util, "find_spec", lambda name: libtpu or None)
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "jax")
    environment = {} if given is None else {"JAX_PLATFORMS": given}
    monkeypatch.setattr(os, "environ", environment)
    quiet.skip_libtpu()
    assert environment.get("JAX_PLATFORMS") == taken


@pytest.mark.skipif(quiet.found(quiet.ACCELERATORS), reason="this machine has an accelerator")
@pytest.mark.parametrize("imports", ["from gmlp_flax import cli; import jax", "import jax; from gmlp_flax import cli"])
def test_jax_takes_the_cpu_in_silence(imports):
    """Whether it was imported before or after; with libtpu where it is installed, without a TPU."""
    program = f"{imports}; cli.explained(lambda: print(jax.default_backend()))"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == ("cpu\n", "")
