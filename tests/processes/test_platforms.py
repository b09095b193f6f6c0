"""The platform that is chosen by default, compiled programs that are kept, and flags of XLA."""

import fnmatch
import os
import subprocess
import sys

import pytest

from gmlp_flax.errors import ConfigError
from gmlp_flax.processes import platforms


@pytest.mark.parametrize(
    ("value", "devices", "libtpu", "chosen"),
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
def test_libtpu_is_only_used_on_machines_with_accelerators(
    value, devices, libtpu, chosen, monkeypatch
):
    monkeypatch.setattr(platforms.glob, "glob", lambda pattern: fnmatch.filter(devices, pattern))
    monkeypatch.setattr(platforms.importlib.util, "find_spec", lambda name: libtpu or None)
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "jax")
    environment = {} if value is None else {"JAX_PLATFORMS": value}
    monkeypatch.setattr(os, "environ", environment)
    platforms.choose()
    assert environment.get("JAX_PLATFORMS") == chosen


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
def test_jax_uses_the_cpu_without_warnings(imports):
    """JAX may be imported before or after; libtpu may be installed, but there is no TPU."""
    program = f"{imports}; platforms.choose(); print(jax.default_backend())"
    environment = dict(os.environ)
    environment.pop("JAX_PLATFORMS", None)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == "cpu\n"
    assert done.stderr == ""


@pytest.mark.skipif(
    platforms.exists(platforms.ACCELERATORS), reason="this machine has an accelerator"
)
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt")
def test_freed_memory_is_reused_without_page_faults():
    """Twenty arrays of 40 MB are made one after another. New memory has 10,000 page faults each."""
    program = """
import resource, sys, threading
from gmlp_flax.errors import ConfigError
from gmlp_flax.processes import platforms
if sys.argv[1] == "kept":
    platforms.keep_freed_memory()
def work():
    for _ in range(20):
        b"x" * 40_000_000
thread = threading.Thread(target=work)  # like XLA's threads, it does not use the main heap
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread.start(); thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    environment = {}
    for name, value in os.environ.items():
        if not name.startswith(("MALLOC_", "GLIBC_")):
            environment[name] = value
    faults = {}
    for how in ("freed", "kept"):
        command = [sys.executable, "-c", program, how]
        done = subprocess.run(command, capture_output=True, check=True, env=environment)
        faults[how] = int(done.stdout)
    assert faults["kept"] < faults["freed"] / 5, faults


@pytest.mark.slow
@pytest.mark.parametrize("imported", ["before", "after"])
def test_compiled_programs_are_reused_by_later_processes(tmp_path, imported):
    """JAX counts the programs that it finds in the user's cache for this kind of CPU. A command may
    have imported JAX before."""
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
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    variables.pop(platforms.PROGRAMS, None)

    def start():
        done = subprocess.run(
            [sys.executable, "-c", code, imported],
            capture_output=True,
            text=True,
            env=variables,
            check=True,
        )
        requests, hits = done.stdout.split()
        return int(requests), int(hits)

    requests, hits = start()
    assert requests > 0
    assert hits == 0
    second_requests, second_hits = start()
    assert second_requests == requests
    assert second_hits == requests
    assert list(tmp_path.glob("gmlp_flax/programs/*/*-cache"))


@pytest.fixture
def no_program_variables(monkeypatch):
    """Unsets the variables of compiled programs, and restores them afterwards."""
    for name in (platforms.PROGRAMS, platforms.SLOW_TO_COMPILE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_the_oldest_programs_are_deleted_first(tmp_path, monkeypatch, no_program_variables):
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


def test_no_programs_are_kept_without_a_writable_home(tmp_path, monkeypatch, no_program_variables):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    platforms.keep_programs()
    assert platforms.PROGRAMS not in os.environ


def check_flags(flags, monkeypatch):
    """The message about a value of XLA_FLAGS, or "" if it is accepted."""
    monkeypatch.setenv("XLA_FLAGS", flags)
    try:
        platforms.check_environment()
    except ConfigError as error:
        return str(error)
    return ""


def test_known_flags_are_checked_without_a_process(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    known = "--xla_dump_to=/nonexistent --xla_cpu_enable_fast_math=false"
    for flags in ("", known, "--xla_force_host_platform_device_count=2"):
        assert check_flags(flags, monkeypatch) == ""


def test_unknown_flags_are_refused(monkeypatch):
    message = check_flags("--xla_dump_to=/nonexistent --xla_nonsense=1", monkeypatch)
    assert "--xla_nonsense=1" in message
    assert "xla_dump_to" not in message


def test_missing_files_of_flags_are_refused(monkeypatch):
    assert "XLA_FLAGS=/nonexistent" in check_flags("/nonexistent", monkeypatch)
    assert check_flags(__file__, monkeypatch) == ""
