"""The folder of a run, local or in a bucket: its files and who may write them, its record and its
checkpoints."""

from gmlp_flax.io.files import RUN_FILE
from gmlp_flax.io.locks import LEASE_FILE

CONFIG_FILE = "config.json"
ENVIRONMENT_FILE = "environment.json"  # the versions of packages that took its last steps
METRICS_FILE = "metrics.jsonl"
RESULT_FILE = "result.json"
CHECKPOINTS = "checkpoints"
DAMAGED = "damaged"  # where damaged checkpoints are moved
FIGURES = "figures"
BEFORE = "before-"  # with a number: the folder where --restart moves the previous run
FILES = (RUN_FILE, CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE, RESULT_FILE, LEASE_FILE)
