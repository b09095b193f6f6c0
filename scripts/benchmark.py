"""The same as `gmlp benchmark`."""

import sys

from gmlp_flax.commands.main import start

if __name__ == "__main__":
    start("benchmark", sys.argv[1:])
