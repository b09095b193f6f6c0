"""`python -m gmlp_flax.train`: the same as `gmlp train`."""

import sys

from gmlp_flax.__main__ import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
