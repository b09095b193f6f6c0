"""The same as `gmlp sweep`."""

from gmlp_flax.commands import sweep

if __name__ == "__main__":
    sweep.run()
