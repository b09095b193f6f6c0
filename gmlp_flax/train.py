"""`python -m gmlp_flax.train`: see gmlp_flax.commands.train."""

from gmlp_flax.commands import train

if __name__ == "__main__":
    train.run()
