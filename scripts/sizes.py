"""The same as `gmlp sizes`."""

from gmlp_flax.commands import sizes

if __name__ == "__main__":
    sizes.run()
