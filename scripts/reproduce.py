"""The same as `gmlp reproduce`."""

from gmlp_flax.commands import reproduce

if __name__ == "__main__":
    reproduce.run()
