"""The runs of a table or figure of the paper, in the settings of configs/c4_ablation.py, c4_bert.py
and imagenet.py.

    gmlp sweep --sweep=paper:table3 --out=runs/table3 --config.data.train=books/data
    gmlp sweep --sweep=paper:figure3,scale=gpu --out=runs/figure3 --config.data.train=cifar10/

ARGUMENT: NAME, followed by ,scale=SCALE.

NAME: table3, table4, figure8, ... The rows, seeds and settings of each are in
gmlp_flax/paper/tables.py. `gmlp reproduce NAME` trains this sweep and writes a report.
SCALE: cpu (default; `small` in the config files), gpu or paper. The config files say what each is.
At cpu and gpu --config.data.train must be given, and the deepest models of table4, figure5 and
figure8 are left out.

--on=ENGINE starts a job for each run, and --print prints their commands. Tables with the same runs
can share a folder: after table4, figure8 with --out=runs/table4 trains the aMLPs alone.
"""

from gmlp_flax.config import arguments
from gmlp_flax.paper.recipes import SCALES
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.sweeps import points


def get_sweep(arg: str = "") -> points.Points:
    """See the module's docstring."""
    names = tuple(name for name, table in TABLES.items() if table.trained)
    name, scale = arguments(arg, names, scale=tuple(SCALES))
    return TABLES[name].points(scale)
