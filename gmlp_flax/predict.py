"""`python -m gmlp_flax.predict`: the same as `gmlp predict`."""

import sys

from gmlp_flax.__main__ import main

if __name__ == "__main__":
    main(["predict", *sys.argv[1:]])
