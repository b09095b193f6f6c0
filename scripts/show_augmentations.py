"""The same as `gmlp augmentations`."""

import sys

from gmlp_flax.commands.main import start

if __name__ == "__main__":
    start("augmentations", sys.argv[1:])
