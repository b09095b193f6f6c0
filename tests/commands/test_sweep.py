"""What a sweep trains, in what order, what it chooses and prints; a stand-in for the trainer answers at once.

Whole runs are in tests/runs/test_sweep.py.
"""

from __future__ import annotations

import json

import pytest

from gmlp_flax import config as config_lib
from tests import preloaded
from tests.sweeps.stand_in import Trainer

TEXT = "configs/quickstart_text.py"
GRID = ("--grid=optimizer.learning_rate=1e-3,2e-3", "--grid=batch_size=32,64")
# As the command is called, with the stand-in for Python where it starts the trainer.
PROGRAM = """
import runpy, sys
sys.executable = {executable!r}
sys.argv = {argv!r}
runpy.run_module("gmlp_flax", run_name="__main__")
"""


@pytest.fixture
def trainer(tmp_path):
    return Trainer(tmp_path)


def sweep(trainer: Trainer, *options: str, config: str = TEXT) -> tuple[int, list[str], list[str]]:
    """Runs the command: exit code, lines of standard output and of standard error."""
    argv = ["gmlp", "sweep", f"--config={config}", f"--out={trainer.folder / 'out'}", *options]
    program = PROGRAM.format(executable=str(trainer.executable), argv=argv)
    done = preloaded.run("-c", program)
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def report(trainer: Trainer) -> dict:
    return json.loads((trainer.folder / "out" / "sweep.json").read_text())


def run(rate: str, batch: int, seed: int) -> str:
    return f"optimizer.learning_rate={rate},batch_size={batch},seed={seed}"


def test_one_seed_chooses_and_the_others_follow(trainer):
    """Perplexity is better the lower; ties go to the first."""
    first = {run("1e-3", 32, 3): 30.0, run("1e-3", 64, 3): 20.0, run("2e-3", 32, 3): 40.0, run("2e-3", 64, 3): 20.0}
    trainer.plan(first | {run("1e-3", 64, 1): 25.0, run("1e-3", 64, 2): 21.0})
    code, printed, told = sweep(trainer, *GRID, "--seeds=3,1,2")
    assert code == 0, told
    assert trainer.names() == [*first, run("1e-3", 64, 1), run("1e-3", 64, 2)]
    assert told == [f"{name}: perplexity {value:.5g}" for name, value in first.items()] + [
        f"{run('1e-3', 64, 1)}: perplexity 25",
        f"{run('1e-3', 64, 2)}: perplexity 21",
    ]
    assert [line.split() for line in printed] == [
        ["seeds", "median", "mean", "lowest", "highest", "perplexity", "of", "each", "seed"],
        ["optimizer.learning_rate=1e-3,batch_size=32", "1", "30", "30", "30", "30", "30"],
        ["optimizer.learning_rate=1e-3,batch_size=64", "3", "21", "22", "20", "25", "20", "25", "21"],
        ["optimizer.learning_rate=2e-3,batch_size=32", "1", "40", "40", "40", "40", "40"],
        ["optimizer.learning_rate=2e-3,batch_size=64", "1", "20", "20", "20", "20", "20"],
        (
            "chosen: optimizer.learning_rate=1e-3,batch_size=64, for its held-out perplexity with seed 3 "
            "(--choose=best; the paper does not say how it chose)"
        ).split(),
    ]


def test_accuracy_is_better_the_higher(trainer):
    trainer.plan({f"batch_size={size},seed=0": {"top1": top1, "loss": 1.0} for size, top1 in ((32, 0.5), (64, 0.75))})
    code, printed, told = sweep(trainer, "--grid=batch_size=32,64", "--seeds=0", config="configs/quickstart_image.py")
    assert code == 0 and printed[-1].startswith("chosen: batch_size=64, for its held-out top1"), told


def test_report_holds_all_metrics_of_all_runs(trainer):
    metrics = [{"perplexity": 10.0, "loss": 2.0}, {"perplexity": 20.0, "loss": 4.0}]
    trainer.plan({f"seed={seed}": each for seed, each in enumerate(metrics)})
    assert sweep(trainer, "--seeds=0,1", "--config.model.d_ffn=64", "--config.optimizer.freeze=('a', 'b')")[0] == 0
    assert report(trainer) == {
        "config": TEXT,
        "overrides": {"model.d_ffn": 64, "optimizer.freeze": ["a", "b"]},
        "metric": "perplexity",
        "mode": "min",
        "chosen": None,
        "points": [
            {
                "point": {},
                "runs": [{"seed": seed, "workdir": f"seed={seed}", "eval": each} for seed, each in enumerate(metrics)],
                "summary": {
                    "perplexity": {"median": 15.0, "mean": 15.0, "lowest": 10.0, "highest": 20.0},
                    "loss": {"median": 3.0, "mean": 3.0, "lowest": 2.0, "highest": 4.0},
                },
            }
        ],
    }
    assert trainer.calls()[1] == [
        "-m",
        "gmlp_flax.train",
        f"--workdir={trainer.folder}/out/seed=1",
        f"--config={TEXT}",
        "--config.model.d_ffn=64",
        "--config.optimizer.freeze=('a', 'b')",
        "--config.seed=1",
    ]


def test_all_points_with_all_seeds(trainer):
    code, printed, _ = sweep(trainer, *GRID, "--seeds=0,1", "--choose=none")
    assert code == 0 and not any("chosen" in line for line in printed)
    rates, sizes = ("1e-3", "2e-3"), (32, 64)
    assert trainer.names() == [run(rate, size, seed) for rate in rates for size in sizes for seed in (0, 1)]
    assert [len(row["runs"]) for row in report(trainer)["points"]] == [2, 2, 2, 2] and report(trainer)["chosen"] is None


def test_keys_that_change_together(trainer):
    assert sweep(trainer, "--grid=batch_size:steps=32:20,64:10", "--seeds=0")[0] == 0
    assert trainer.names() == ["batch_size=32,steps=20,seed=0", "batch_size=64,steps=10,seed=0"]
    assert trainer.calls()[1][-3:] == ["--config.batch_size=64", "--config.steps=10", "--config.seed=0"]


def test_what_is_finished_is_not_run_again(trainer):
    first = sweep(trainer, *GRID, "--seeds=0,0")
    assert first[0] == 0 and len(trainer.calls()) == 4
    assert sweep(trainer, *GRID, "--seeds=0") == first and len(trainer.calls()) == 4
    assert sweep(trainer, *GRID, "--seeds=0,1", "--jobs=2")[0] == 0
    assert trainer.names()[4:] == [run("1e-3", 32, 1)]


def test_failing_run_ends_the_sweep(trainer):
    trainer.plan({"seed=1": "fails"})
    code, printed, told = sweep(trainer, "--seeds=0,1,2,3,4,5")
    folder = trainer.folder / "out" / "seed=1"
    assert (code, printed) == (2, [])
    assert told[-1] == f"error: the run {folder} failed (the reason of seed=1): its output is in {folder}.log"
    assert len(trainer.names()) <= 3 and not (trainer.folder / "out" / "sweep.json").exists()


@pytest.mark.parametrize("metrics", [{"perplexity": float("nan")}, {"loss": 1.0}])
def test_run_that_cannot_be_compared(trainer, metrics):
    trainer.plan({"seed=0": metrics})
    code, _, told = sweep(trainer, "--seeds=0")
    assert code == 2 and told[-1].startswith("error: the run seed=0 ended with perplexity nan: it cannot be compared")


def written(trainer: Trainer, **changes: object) -> None:
    """The config of a run that is already there."""
    config = config_lib.changed(config_lib.from_file(TEXT), str(changes.get("task", "")))
    config.update_from_flattened_dict({"init_from": "pretrained", **changes})
    folder = trainer.folder / "out" / "seed=0"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config_lib.to_json(config))


def test_run_of_another_config_is_not_counted(trainer):
    written(trainer, steps=7)
    code, _, told = sweep(trainer, "--seeds=1,0", "--config.init_from=pretrained")
    wrong = "is a run of another config (config.steps was 7 and is now 500): give another --out"
    assert code == 2 and told == [f"error: {trainer.folder}/out/seed=0 {wrong}"] and not trainer.calls()


def test_what_a_run_inherited_is_no_other_config(trainer):
    """The model of a finetuned run is that of the pretrained one, whatever the config says."""
    finetuning = ["--config.task=text_classification", "--config.init_from=pretrained"]
    written(trainer, **{"task": "text_classification", "model.layers": 7})
    code, _, told = sweep(trainer, "--seeds=0", *finetuning)
    assert code == 2 and told[-1].startswith("error: the run seed=0 ended with accuracy nan")
    (trainer.folder / "out" / "seed=0" / "result.json").write_text('{"eval": {"accuracy": 0.5}}')
    assert sweep(trainer, "--seeds=0", *finetuning)[0] == 0
    assert "config.model.length was" in sweep(trainer, "--seeds=0", *finetuning, "--config.model.length=9")[2][-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seeds="], "--seeds=: expected numbers, as in --seeds=0,1,2"),
        (["--seeds=0,x"], "--seeds=0,x: expected numbers"),
        (["--grid=batch_siz=3"], "batch_siz=3: there is no config key 'batch_siz'; did you mean 'batch_size'?"),
        (["--grid=batch_size"], "'batch_size' is no part of a grid: expected batch_size=VALUE,..."),
        (["--grid=batch_size=8,b"], "flag --config.batch_size=b: expected a whole number"),
        (["--grid=batch_size=8,0"], "config.batch_size is 0: expected from 1 to 1,048,576"),
        (["--grid=batch_size=8,08"], "two points are one run, or share the name of its folder: "),
        (["--grid=init_from=a/b,a b"], "two points are one run, or share the name of its folder: init_from=a_b,seed=0"),
        ([f"--grid=init_from={'ä' * 110}"], f"init_from={'ä' * 110},seed=0 is too long to name a folder"),
        ([f"--grid=init_from={'long' * 60}"], f"init_from={'long' * 60},seed=0 is too long to name a folder"),
        (["--grid=batch_size=8", "--config.batch_size=4"], "--config.batch_size and the sweep set the same key: give"),
        (["--grid=seed=1,2"], "the key seed is set by --seeds: give it there alone"),
        (["--config.seed=1"], "the key seed is set by --seeds: give it there alone"),
        (["--config.batch_siz=1"], "--config.batch_siz=1: there is no config key 'batch_siz'"),
        (["--config=nowhere.py"], "there is no config file nowhere.py"),
        (["--choose=first"], "flag --choose=first: value should be one of <best|none>"),
        (["--jobs=0"], "flag --jobs=0: 0 is not a positive integer"),
        (["--out="], "--out is missing: give --out=DIR"),
        (["--dry_run"], "--dry_run is for an engine: give --on=ENGINE with it; --print shows the runs' commands"),
        (["--topology=v5e:4x4", "--seeds=0"], "--topology is for an engine: give --on=ENGINE with it"),
        (["--seed=1"], "Unknown command line flag 'seed'"),
        (["more"], "'more' is no flag: flags are written --name=value"),
    ],
)
def test_mistakes_are_one_line_before_any_run(trainer, options, message):
    config = next((word.partition("=")[2] for word in options if word.startswith("--config=")), TEXT)
    code, printed, told = sweep(trainer, *options, config=config)
    assert (code, printed, len(told)) == (2, [], 1), told
    assert told[0].startswith(f"error: {message}") and not (trainer.folder / "out").exists()


def test_no_config_is_one_line():
    done = preloaded.gmlp("sweep", "--out=x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --config is missing: give --config=NAME[:ARGUMENT], or --sweep=FILE\n"
