"""`python -m gmlp_flax SUBCOMMAND`: the same as `gmlp SUBCOMMAND`."""

from gmlp_flax.commands.main import main

if __name__ == "__main__":
    main()
