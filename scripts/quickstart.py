"""The same as `gmlp quickstart`."""

import sys

from gmlp_flax.commands.main import start

if __name__ == "__main__":
    start("quickstart", sys.argv[1:])
