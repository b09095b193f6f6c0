"""One file per experiment family: `get_config(argument)` returns a config."""
