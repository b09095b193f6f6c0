"""The same as `gmlp reproduce`."""

import sys

from gmlp_flax.commands.main import start

if __name__ == "__main__":
    start("reproduce", sys.argv[1:])
