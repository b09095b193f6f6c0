"""The same as `gmlp plan`."""

import sys

from gmlp_flax.commands.main import start

if __name__ == "__main__":
    start("plan", sys.argv[1:])
