"""`python -m gmlp_flax.evaluate`: the same as `gmlp evaluate`."""

import sys

from gmlp_flax.commands.main import start

if __name__ == "__main__":
    start("evaluate", sys.argv[1:])
