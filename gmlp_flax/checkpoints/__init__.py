"""The folder of a run, local or in a bucket: its files and who may write them, its record, its
checkpoints."""

from gmlp_flax.io.locks import LEASE_FILE

RUN_FILE, CONFIG_FILE, ENVIRONMENT_FILE = "run.json", "config.json", "environment.json"
METRICS_FILE, RESULT_FILE = "metrics.jsonl", "result.json"
CHECKPOINTS, DAMAGED, FIGURES = "checkpoints", "damaged", "figures"
BEFORE = "before-"  # with a number: where --restart puts the record of the run before
FILES = (RUN_FILE, CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE, RESULT_FILE, LEASE_FILE)
