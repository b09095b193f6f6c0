"""timm, for tests that compare with it."""

import importlib
import importlib.util
from types import ModuleType

import pytest

from gmlp_flax.benchmarks.beside_torch import import_beside_torch


def timm_module(name: str) -> ModuleType:
    """A module of timm, or skips the test where timm is not installed."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed (extra: parity)")
    import_beside_torch("timm")
    return importlib.import_module(f"timm.{name}")
