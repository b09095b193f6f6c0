"""The same as `gmlp sweep`."""

import sys

from gmlp_flax.commands.main import start

if __name__ == "__main__":
    start("sweep", sys.argv[1:])
