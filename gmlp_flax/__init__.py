"""gMLP, aMLP and the token mixers they are compared with, in JAX and Flax ("Pay Attention to
MLPs").

    import gmlp_flax as gf

    model = gf.load("runs/text")
    model.predict("The [MASK] statement is used to define a function.", top=3)

Importing this package imports nothing else; its names import JAX when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gmlp_flax.api.factory import create, list_models, list_pretrained, load
    from gmlp_flax.api.inspection import inspect
    from gmlp_flax.api.probing import probe
    from gmlp_flax.api.runs import evaluate, train
    from gmlp_flax.interop.exported import export, push
    from gmlp_flax.training.model import Model

__version__ = "0.3.0.dev0"
__all__ = [
    "Model",
    "create",
    "evaluate",
    "export",
    "inspect",
    "list_models",
    "list_pretrained",
    "load",
    "probe",
    "push",
    "train",
]

_MODULES = {
    "Model": "training.model",
    "inspect": "api.inspection",
    **dict.fromkeys(("create", "list_models", "list_pretrained", "load"), "api.factory"),
    "probe": "api.probing",
    **dict.fromkeys(("evaluate", "train"), "api.runs"),
    **dict.fromkeys(("export", "push"), "interop.exported"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'gmlp_flax' has no attribute {name!r}")
    import importlib

    from gmlp_flax.processes import output, platforms

    platforms.choose()
    platforms.keep_freed_memory()
    output.silence_orbax()
    globals()[name] = value = getattr(importlib.import_module(f"gmlp_flax.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
