"""Starting a run somewhere else: `engines`."""
