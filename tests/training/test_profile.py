import contextlib

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.training import loop, profile
from tests.conftest import small_text_config


@pytest.mark.slow
def test_a_run_writes_a_trace(tmp_path):
    options = small_text_config(tmp_path / "cache")
    options.steps, options.profile.steps = 6, "2:3"
    loop.train(options, str(tmp_path / "run"))
    assert list((tmp_path / "run").glob("profile/plugins/profile/*/*.xplane.pb"))


@pytest.fixture
def options(config):
    config.steps, config.profile.steps = 20, "3:5"
    return config


@pytest.fixture
def calls(monkeypatch):
    made = []
    monkeypatch.setattr(profile.jax.profiler, "start_trace", lambda folder: made.append("start"))
    monkeypatch.setattr(profile.jax.profiler, "stop_trace", lambda: made.append("stop"))
    return made


@pytest.mark.parametrize(
    ("traced", "steps", "expected"),
    [
        ("3:5", range(1, 8), [1, 2, "start", 3, 4, 5, "stop", 6, 7]),
        ("", range(1, 3), [1, 2]),
        # A run that goes on amid them, and one that ends there.
        ("3:5", range(5, 7), ["start", 5, "stop", 6]),
        ("3:5", range(1, 5), [1, 2, "start", 3, 4, "stop"]),
    ],
)
def test_just_these_steps_are_traced(options, calls, tmp_path, traced, steps, expected):
    options.profile.steps = traced
    tracer = profile.Profile(options, str(tmp_path))
    for number in steps:
        assert tracer.step(number, lambda number: calls.append(number) or number, number) == number
    tracer.close()
    assert calls == expected


@pytest.mark.parametrize(
    ("platforms", "backend", "found", "refused"),
    [
        (None, "cpu", object(), "JAX_PLATFORMS=cpu"),
        (None, "gpu", object(), "JAX_PLATFORMS=cuda"),
        (None, "tpu", object(), None),
        (None, "cpu", None, None),
        ("cpu", "cpu", object(), None),
    ],
)
def test_a_profiler_that_would_crash_is_refused(platforms, backend, found, refused, options, tmp_path, monkeypatch):
    """libtpu 0.0.52 with jaxlib 0.10.2 and no TPU: starting the trace ends in a segmentation fault."""
    monkeypatch.setattr(profile.jax, "default_backend", lambda: backend)
    monkeypatch.setattr(profile.importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(type(profile.jax.config), "jax_platforms", platforms, raising=False)
    with pytest.raises(RunError, match=refused) if refused else contextlib.nullcontext():
        profile.Profile(options, str(tmp_path))
    options.profile.steps = ""
    profile.Profile(options, str(tmp_path))
