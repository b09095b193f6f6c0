"""The data of tasks: what config.data says is read, cut or decoded, and given to the pipeline as batches."""
