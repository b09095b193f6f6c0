"""`python -m gmlp_flax.train`: the same as `gmlp train`."""

import sys

from gmlp_flax.commands.main import start

if __name__ == "__main__":
    start("train", sys.argv[1:])
