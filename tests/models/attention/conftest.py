"""The kernel of TPUs, run on this machine."""

import functools

import pytest

from gmlp_flax.models import sharding
from gmlp_flax.models.attention import fused


@pytest.fixture
def on_tpu(monkeypatch):
    """Attention takes this machine for a TPU, and the kernel is interpreted. Gives the options of
    each call of the kernel."""
    calls = []
    kernel = functools.partial(fused.attention, interpret=True)

    def record(*args, **options):
        calls.append(options)
        return kernel(*args, **options)

    monkeypatch.setattr(sharding, "platform", lambda: "tpu")
    monkeypatch.setattr(fused, "attention", record)
    return calls
