"""The `gmlp` command: one file per subcommand. Nothing else in the package imports from here."""
