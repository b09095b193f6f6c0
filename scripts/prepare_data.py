"""The same as `gmlp prepare`."""

import sys

from gmlp_flax.commands.main import start

if __name__ == "__main__":
    start("prepare", sys.argv[1:])
