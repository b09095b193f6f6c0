"""`python -m gmlp_flax.predict`: the same as `gmlp predict`."""

import sys

from gmlp_flax.commands.main import start

if __name__ == "__main__":
    start("predict", sys.argv[1:])
