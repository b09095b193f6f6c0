"""Starting a run somewhere else: one file per engine, which writes what its tool takes from a config and a topology."""
