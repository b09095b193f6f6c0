"""`python -m gmlp_flax.predict`: see gmlp_flax.commands.predict."""

from gmlp_flax.commands import predict

if __name__ == "__main__":
    predict.run()
