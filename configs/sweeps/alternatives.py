"""The runs of one column of `gmlp reproduce alternatives`: every token mixer in one frame.

    gmlp sweep --sweep=alternatives:mlm --out=runs/mlm --config.data.train=books/data
    gmlp sweep --sweep=alternatives:cifar10,rows=sgu+mixer+fnet --out=runs/cifar10 \\
        --config.data.train=cifar10/

ARGUMENT: COLUMN, followed by ,scale=SCALE and ,rows=ROW+ROW+...

COLUMN: mlm (default), longer, cifar10, listops, bytes or pixels, the trained columns of
gmlp_flax/paper/alternatives.py.
SCALE: cpu (default), gpu or paper.
ROW: the name of a row. Without rows= there are all of them.
"""

from gmlp_flax.config import arguments
from gmlp_flax.paper.alternatives import COLUMNS, ROWS, checked
from gmlp_flax.paper.recipes import SCALES
from gmlp_flax.sweeps import points


def get_sweep(arg: str = "mlm") -> points.Points:
    """See the module's docstring."""
    rows = ROWS
    others = []
    for word in (arg or "mlm").split(","):
        key, equals, value = word.partition("=")
        if key == "rows" and equals:
            rows = checked(value.split("+"), ROWS, "rows")
        else:
            others.append(word)
    trained = tuple(name for name, column in COLUMNS.items() if not column.starts)
    name, scale = arguments(",".join(others), trained, scale=tuple(SCALES))
    return COLUMNS[name].points(scale, rows)
