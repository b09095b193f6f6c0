"""`python -m gmlp_flax.evaluate`: the same as `gmlp evaluate`."""

import sys

from gmlp_flax.__main__ import main

if __name__ == "__main__":
    main(["evaluate", *sys.argv[1:]])
