"""The same as `gmlp score-squad`."""

from gmlp_flax.commands import score_squad

if __name__ == "__main__":
    score_squad.run()
