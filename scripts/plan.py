"""The same as `gmlp plan`."""

from gmlp_flax.commands import plan

if __name__ == "__main__":
    plan.run()
