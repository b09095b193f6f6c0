"""The platform that is chosen if the user chooses none."""

import fnmatch
import os
import subprocess
import sys

import pytest

from gmlp_flax.errors import ConfigError
from gmlp_flax.processes import platforms


@pytest.mark.parametrize(
    ("given", "devices", "libtpu", "taken"),
    [
        (None, (), True, "cpu"),
        (None, ("/dev/nvidia0",), True, "cuda,cpu"),
        (None, ("/dev/nvidia0",), False, None),
        (None, ("/dev/kfd",), True, None),
        (None, ("/dev/accel3",), True, None),
        (None, (), False, None),
        ("tpu,cpu", (), True, "tpu,cpu"),
    ],
)
def test_a_machine_without_accelerators_does_not_ask_libtpu(
    given, devices, libtpu, taken, monkeypatch
):
    monkeypatch.setattr(platforms.glob, "glob", lambda pattern: fnmatch.filter(devices, pattern))
    monkeypatch.setattr(platforms.importlib.util, "find_spec", lambda name: libtpu or None)
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "jax")
    environment = {} if given is None else {"JAX_PLATFORMS": given}
    monkeypatch.setattr(os, "environ", environment)
    platforms.choose()
    assert environment.get("JAX_PLATFORMS") == taken


@pytest.mark.skipif(
    platforms.exists(platforms.ACCELERATORS), reason="this machine has an accelerator"
)
@pytest.mark.parametrize(
    "imports",
    [
        "from gmlp_flax.processes import platforms; import jax",
        "import jax; from gmlp_flax.processes import platforms",
    ],
)
def test_jax_takes_the_cpu_in_silence(imports):
    """Whether JAX is imported before or after, with libtpu (if installed) and without a TPU."""
    program = f"{imports}; platforms.choose(); print(jax.default_backend())"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == "cpu\n"
    assert done.stderr == ""


@pytest.mark.skipif(
    platforms.exists(platforms.ACCELERATORS), reason="this machine has an accelerator"
)
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt")
def test_freed_arrays_are_not_faulted_in_again():
    """Twenty arrays of 40 MB, one after another: anew they touch 10,000 pages each."""
    program = """
import resource, sys, threading
from gmlp_flax.errors import ConfigError
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
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    faults = {}
    for how in ("freed", "kept"):
        command = [sys.executable, "-c", program, how]
        faults[how] = int(
            subprocess.run(command, capture_output=True, check=True, env=environment).stdout
        )
    assert faults["kept"] < faults["freed"] / 5, faults


@pytest.mark.parametrize("imported", ["before", "after"])
def test_a_second_start_compiles_nothing(tmp_path, imported):
    """The folder is the user's, and of this kind of CPU; JAX counts what it found there. A command
    may have imported JAX already."""
    code = """
import sys
from gmlp_flax.processes import platforms
if sys.argv[1] == "before":
    import jax
platforms.keep_programs()
import jax
counts = {}
jax.monitoring.register_event_listener(lambda name, **_: counts.update({name: counts.get(name, 0) + 1}))
jax.jit(lambda x: x @ x + 1)(jax.numpy.ones((8, 8)))
names = ("compile_requests_use_cache", "cache_hits")
print(*(counts.get(f"/jax/compilation_cache/{name}", 0) for name in names))
"""
    variables = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XDG_CACHE_HOME": str(tmp_path),
        platforms.SLOW_TO_COMPILE: "0",
    }
    variables |= {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    variables.pop(platforms.PROGRAMS, None)

    def start():
        done = subprocess.run(
            [sys.executable, "-c", code, imported],
            capture_output=True,
            text=True,
            env=variables,
            check=True,
        )
        return tuple(map(int, done.stdout.split()))

    (asked, found) = start()
    second = start()
    assert asked > found == 0
    assert second == (asked, asked)
    assert list(tmp_path.glob("gmlp_flax/programs/*/*-cache"))


@pytest.fixture
def unset(monkeypatch):
    """An environment that says nothing of compiled programs, put back afterwards."""
    for name in (platforms.PROGRAMS, platforms.SLOW_TO_COMPILE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_the_oldest_programs_go_first(tmp_path, monkeypatch, unset):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(platforms, "MOST_PROGRAMS", 250)
    folder = tmp_path / "gmlp_flax" / "programs" / "another"
    folder.mkdir(parents=True)
    for age, name in enumerate("abc"):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1e9 - age, 1e9 - age))
    platforms.keep_programs()
    assert sorted(os.listdir(folder)) == ["a", "b"]
    assert os.environ[platforms.PROGRAMS].startswith(str(tmp_path))


def test_a_home_that_cannot_be_written_to_keeps_no_programs(tmp_path, monkeypatch, unset):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    platforms.keep_programs()
    assert platforms.PROGRAMS not in os.environ


def check_flags(flags, monkeypatch):
    """What the check of the environment says of a value of XLA_FLAGS; "" if nothing."""
    monkeypatch.setenv("XLA_FLAGS", flags)
    try:
        platforms.check_environment()
    except ConfigError as error:
        return str(error)
    return ""


def test_flags_that_xla_knows_start_no_process(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    known = "--xla_dump_to=/nonexistent --xla_cpu_enable_fast_math=false"
    for flags in ("", known, "--xla_force_host_platform_device_count=2"):
        assert check_flags(flags, monkeypatch) == ""


def test_a_flag_that_xla_does_not_know(monkeypatch):
    said = check_flags("--xla_dump_to=/nonexistent --xla_nonsense=1", monkeypatch)
    assert "--xla_nonsense=1" in said
    assert "xla_dump_to" not in said


def test_a_file_of_flags_that_is_not_there(monkeypatch):
    assert "XLA_FLAGS=/nonexistent" in check_flags("/nonexistent", monkeypatch)
    assert check_flags(__file__, monkeypatch) == ""
