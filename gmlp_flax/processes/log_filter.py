"""Hides what Orbax and TensorStore print in addition to the errors that they raise."""

from __future__ import annotations

import logging as std_logging
import os
import sys
from typing import Any

from absl import logging

ORBAX = os.path.join("orbax", "checkpoint", "")


def install() -> None:
    """Filters this process's log, and its hook for exceptions that nothing can catch."""
    if _is_ours in logging.get_absl_logger().filters:
        return
    logging.get_absl_handler().addFilter(_is_ours)
    logging.get_absl_logger().addFilter(_is_ours)  # where absl's handler is not in use, as in a notebook
    show = sys.unraisablehook

    def unraisablehook(unraisable: Any) -> None:
        code = getattr(unraisable.object, "cr_code", None)
        # After an error, TensorStore's threads still answer to an event loop that is closed.
        late = str(unraisable.exc_value) == "Event loop is closed"
        if not late and (code is None or ORBAX not in code.co_filename):
            show(unraisable)

    sys.unraisablehook = unraisablehook


def _is_ours(record: std_logging.LogRecord) -> bool:
    return record.name != "asyncio" and ORBAX not in record.pathname
