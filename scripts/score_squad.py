"""The same as `gmlp score-squad`."""

import sys

from gmlp_flax.commands.main import start

if __name__ == "__main__":
    start("score-squad", sys.argv[1:])
