"""The folder of a run, local or in a bucket: its files and who may write them, its record, its checkpoints."""
