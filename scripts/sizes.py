"""The same as `gmlp sizes`."""

import sys

from gmlp_flax.commands.main import start

if __name__ == "__main__":
    start("sizes", sys.argv[1:])
