"""The same as `gmlp quickstart`."""

from gmlp_flax.commands import quickstart

if __name__ == "__main__":
    quickstart.run()
