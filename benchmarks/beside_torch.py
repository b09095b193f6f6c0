"""timm and transformers, which need torch, for comparisons."""

import importlib
from typing import Any

from gmlp_flax.errors import RunError, install


def import_beside_torch(package: str) -> Any:
    """Imports timm or transformers, even if the installed torchvision does not fit the installed
    torch.

    Raises:
        RunError: the package or torch is not installed.
    """
    try:
        from torch import library

        try:
            importlib.import_module("torchvision")
        except ImportError:
            pass  # timm and transformers do not need it
        # It fits another torch. Both packages ask for two of its operators, and never run them.
        except RuntimeError:
            for operator in ("nms", "qnms"):
                library.define(
                    f"torchvision::{operator}",
                    "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
                )
        return importlib.import_module(package)
    except ImportError as error:
        raise RunError(f"{package} is not installed ({error}): {install('parity')}") from None
