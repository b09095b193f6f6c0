"""The benchmark's part `parity`: our models beside timm's and transformers', with the same random weights."""

from __future__ import annotations

import sys

from gmlp_flax.benchmarks.timing import Row, row
from gmlp_flax.errors import RunError
from gmlp_flax.interop import fnet, parity


def bench_parity() -> list[Row]:
    """The largest relative errors of logits and pixel gradients, in float32; the tests hold them to the same limits.

    Raises:
        RunError: torch or timm is not installed.
    """
    rows = []
    for name in parity.COMPARED:
        errors = parity.compare(name)
        rows.append(row(f"{name}: logits", [errors.logits], "", "<= 1e-4"))
        rows.append(row(f"{name}: gradient of the pixels", [errors.gradient], "", "<= 1e-3"))
    try:
        rows.append(row("FNet-base, of transformers: logits", [fnet.compare()], "", "<= 1e-4"))
    except RunError as error:
        print(f"FNet is left out: {error}", file=sys.stderr)
    return rows
