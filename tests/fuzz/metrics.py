"""metrics.jsonl and result.json, read as training, sweeps, reports and curves read them."""

import contextlib
import io
import json

from gmlp_flax import config as gmlp_config
from gmlp_flax.analysis import figure_files
from gmlp_flax.checkpoints import METRICS_FILE, RESULT_FILE
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.errors import UserError
from gmlp_flax.reports import curves, runs
from gmlp_flax.sweeps import states
from gmlp_flax.sweeps.definition import Sweep, Trial
from tests.fuzz import config as configs
from tests.fuzz.damage import damaged, damaged_json

EVALUATION = {"perplexity": 12.5, "accuracy": 0.25, "loss": 2.5, "predictions": 90, "examples": 12}
LINES = [
    {"step": 3, "loss": 5.5, "accuracy": 0.1, "gradient_norm": 1.5, "tokens_per_second": 900.5},
    {"step": 6, "eval": EVALUATION},
    {"step": 6, "loss": 5.0, "tokens_per_second": 900.5},
    {
        "step": 9,
        "eval": EVALUATION,
        "baselines": [{"name": "token frequencies alone", "eval": {"perplexity": 99.5}}],
    },
]


def make(folder):
    workdir = folder / "runs" / "a"
    workdir.mkdir(parents=True)
    whole = configs.small("masked_lm", "gmlp", folder)
    trial = Trial({"seed": 0}, [], whole)
    sweep = Sweep("config", {}, (trial,), False, "perplexity", "min", str(workdir.parent))
    (workdir.parent / trial.name).symlink_to(workdir)

    def check(rng):
        data = b""
        for line in LINES:
            is_damaged = rng.random() < 0.4
            text = damaged_json(line, rng) if is_damaged else json.dumps(line).encode()
            data += text.replace(b"\n", b"") + b"\n"
        if rng.random() < 0.3:
            data = damaged(data, rng)
        (workdir / METRICS_FILE).write_bytes(data)
        (workdir / RESULT_FILE).write_bytes(damaged_json({"step": 9, "eval": EVALUATION}, rng))
        (workdir / "config.json").write_text(gmlp_config.to_json(whole))
        refused = None
        with contextlib.redirect_stderr(io.StringIO()):
            for read in (resume, lambda: draw(rng), lambda: states.status(sweep), report):
                try:
                    read()
                except UserError as error:
                    refused = error
        if refused:
            raise refused

    def resume():
        found = MetricsFile(str(workdir / METRICS_FILE), 9, read_only=True)
        _ = found.evaluations, found.baselines

    def draw(rng):
        chart = curves.of_run(str(workdir))
        if rng.random() < 0.02:
            figure_files.save({"loss": chart}, str(workdir))

    def report():
        for run in runs.find(str(workdir), {"row": whole}):
            run.curve("perplexity")
            runs.baselines([run], "perplexity")
            _ = run.last_step, run.finished

    return check
