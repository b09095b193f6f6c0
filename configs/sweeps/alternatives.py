"""The runs of one column of `gmlp reproduce alternatives`: every token mixer in one frame.

    gmlp sweep --sweep=alternatives:mlm --out=runs/mlm --config.data.train=books/data
    gmlp sweep --sweep=alternatives:cifar10,rows=sgu+mixer+fnet --out=runs/cifar10
    --config.data.train=cifar10/

ARGUMENT: COLUMN, with ,scale=SCALE and ,rows=ROW+ROW+... behind it. COLUMN is a trained column of
gmlp_flax/paper/alternatives.py: mlm, cifar10, listops, bytes, pixels. SCALE: cpu (default), gpu or
paper. ROW: a row's name; all of them unless some are named.
"""

from gmlp_flax.config import arguments
from gmlp_flax.paper.alternatives import COLUMNS, ROWS, checked
from gmlp_flax.paper.recipes import SCALES
from gmlp_flax.sweeps import points


def get_sweep(arg: str = "mlm") -> points.Points:
    """See the module's docstring."""
    words = (arg or "mlm").split(",")
    chosen = [word.removeprefix("rows=").split("+") for word in words if word.startswith("rows=")]
    rows = checked(chosen[-1], ROWS, "rows") if chosen else ROWS
    trained = tuple(name for name, column in COLUMNS.items() if not column.starts)
    rest = ",".join(word for word in words if not word.startswith("rows="))
    name, scale = arguments(rest, trained, scale=tuple(SCALES))
    return COLUMNS[name].points(scale, rows)
