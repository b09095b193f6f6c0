"""The same as `gmlp benchmark`."""

from gmlp_flax.commands import benchmark

if __name__ == "__main__":
    benchmark.run()
