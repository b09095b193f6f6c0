"""The same as `gmlp prepare`."""

from gmlp_flax.commands import prepare

if __name__ == "__main__":
    prepare.run()
