"""`python -m gmlp_flax.evaluate`: see gmlp_flax.commands.evaluate."""

from gmlp_flax.commands import evaluate

if __name__ == "__main__":
    evaluate.run()
