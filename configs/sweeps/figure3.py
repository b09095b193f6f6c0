"""The paper's Figure 3: a gMLP that classifies images, whose spatial filters are drawn; one run.

    python scripts/sweep.py --sweep=configs/sweeps/figure3.py:cpu --out=runs/figure3 --config.data.train=cifar10/

ARGUMENT: the scale. paper is gMLP-B on ImageNet; cpu (default) and gpu are the gMLP of configs/cifar10.py.
"""

from gmlp_flax import recipes, sweep


def get_sweep(arg: str = "cpu") -> sweep.Points:
    """See the module's docstring."""
    return sweep.product({"config": [recipes.published("gmlp_b", arg)]})
