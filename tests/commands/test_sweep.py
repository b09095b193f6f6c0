"""What a sweep trains, in what order, what it chooses and prints; a stand-in for the trainer
answers at once.

Whole runs are in tests/runs/test_sweep.py.
"""

from pathlib import Path

import pytest

from gmlp_flax import config as config_lib
from tests.sweeps.stand_in import Trainer

TEXT = "configs/quickstart_text.py"
GRID = ("--grid=optimizer.learning_rate=1e-3,2e-3", "--grid=batch_size=32,64")


@pytest.fixture
def trainer(tmp_path):
    return Trainer(tmp_path)


def sweep(trainer: Trainer, *options: str, config: str = TEXT) -> tuple[int, list[str], list[str]]:
    return trainer.sweep(f"--config={config}", *options)


def run(rate: str, batch: int, seed: int) -> str:
    return f"optimizer.learning_rate={rate},batch_size={batch},seed={seed}"


def test_first_seed_selects_the_settings_of_the_others(trainer):
    """Perplexity is better the lower; ties go to the first."""
    first = {
        run("1e-3", 32, 3): 30.0,
        run("1e-3", 64, 3): 20.0,
        run("2e-3", 32, 3): 40.0,
        run("2e-3", 64, 3): 20.0,
    }
    first = {f"{name},data.search=True": value for name, value in first.items()}
    reported = {run("1e-3", 64, seed): value for seed, value in {3: 20.0, 1: 25.0, 2: 21.0}.items()}
    trainer.plan(first | reported)
    code, printed, messages = sweep(trainer, *GRID, "--seeds=3,1,2")
    assert code == 0, messages
    assert trainer.names() == [*first, *reported]
    got = ["--config.data.search=True" in call for call in trainer.calls()]
    expected = [True] * 4 + [False] * 3
    assert got == expected
    ended = [f"{name}: perplexity {value:.5g}" for name, value in (first | reported).items()]
    assert [line.rpartition(" (")[0] for line in messages] == ended
    counts = [line.rpartition(" (")[2].partition(",")[0].rstrip(")") for line in messages]
    assert counts == [f"{number} of 7 runs" for number in range(1, 8)]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in printed
        if line.startswith("|")
    ]
    assert lines[0] == [
        "",
        "seeds",
        "median",
        "mean",
        "lowest",
        "highest",
        "perplexity of each seed",
    ]
    assert lines[2][0] == "optimizer.learning_rate=1e-3,batch_size=32,data.search=True"
    assert lines[2][1:] == ["1", *["30.0"] * 5]
    assert lines[6][0] == "optimizer.learning_rate=1e-3,batch_size=64"
    assert lines[6][1:] == ["3", "21.0", "22.0", "20.0", "25.0", "20.0 25.0 21.0"]
    chosen = "chosen: optimizer.learning_rate=1e-3,batch_size=64, for its perplexity with seed 3 on data held out"
    assert any(line.startswith(chosen) for line in printed)
    assert printed[-1] == f"the report: {trainer.folder}/out/report/index.html"
    assert trainer.report()["chosen"] == 4


def test_higher_accuracy_is_better(trainer):
    scores = {
        f"batch_size={size},seed=0,data.search=True": top1 for size, top1 in ((32, 0.5), (64, 0.75))
    }
    scores["batch_size=64,seed=0"] = 0.7
    trainer.plan({name: {"top1": top1, "loss": 1.0} for name, top1 in scores.items()})
    code, printed, messages = sweep(
        trainer, "--grid=batch_size=32,64", "--seeds=0", config="configs/quickstart_image.py"
    )
    assert code == 0, messages
    assert any(line.startswith("chosen: batch_size=64, for its top1 with") for line in printed), (
        messages
    )


def test_report_holds_all_metrics_of_all_runs(trainer):
    metrics = [{"perplexity": 10.0, "loss": 2.0}, {"perplexity": 20.0, "loss": 4.0}]
    trainer.plan({f"seed={seed}": each for seed, each in enumerate(metrics)})
    assert (
        sweep(
            trainer,
            "--seeds=0,1",
            "--config.model.d_ffn=64",
            "--config.optimizer.freeze=('a', 'b')",
        )[0]
        == 0
    )
    assert trainer.report() == {
        "config": TEXT,
        "overrides": {"model.d_ffn": 64, "optimizer.freeze": ["a", "b"]},
        "metric": "perplexity",
        "mode": "min",
        "chosen": None,
        "points": [
            {
                "point": {},
                "runs": [
                    {"seed": seed, "workdir": f"seed={seed}", "eval": each}
                    for seed, each in enumerate(metrics)
                ],
                "summary": {
                    "perplexity": {"median": 15.0, "mean": 15.0, "lowest": 10.0, "highest": 20.0},
                    "loss": {"median": 3.0, "mean": 3.0, "lowest": 2.0, "highest": 4.0},
                },
            }
        ],
    }
    changes = ["--config.model.d_ffn=64", "--config.optimizer.freeze=('a', 'b')", "--config.seed=1"]
    own = [f"--workdir={trainer.folder}/out/seed=1", f"--config={TEXT}"]
    assert trainer.calls()[1] == ["-m", "gmlp_flax.train", *own, *changes]


@pytest.mark.parametrize("metrics", [{"perplexity": float("nan")}, {"loss": 1.0}])
def test_incomparable_run_is_refused(trainer, metrics):
    trainer.plan({"seed=0": metrics})
    code, _, messages = sweep(trainer, "--seeds=0")
    assert code == 2
    assert messages[-1].startswith(
        "error: the run seed=0 ended with perplexity nan: it cannot be compared"
    )


def written(trainer: Trainer, **changes: object) -> None:
    """The config of a run that is already there."""
    config = config_lib.changed(config_lib.from_file(TEXT), str(changes.get("task", "")))
    config.update_from_flattened_dict({"init_from": "pretrained", **changes})
    folder = trainer.folder / "out" / "seed=0"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config_lib.to_json(config))


def test_run_with_another_config_is_not_counted(trainer):
    written(trainer, steps=7)
    message = trainer.refused(f"--config={TEXT}", "--seeds=1,0", "--config.init_from=pretrained")
    wrong = "is a run of another config (config.steps was 7 and is now 500): choose another folder"
    assert message.startswith(f"{trainer.folder}/out/seed=0 {wrong}")


def test_mesh_chosen_by_a_run_is_not_another_config(trainer):
    written(trainer, **{"mesh.data": 4, "mesh.fsdp": 2, "mesh.tensor": 1})
    (trainer.folder / "out" / "seed=0" / "result.json").write_text('{"eval": {"perplexity": 9}}')
    flags = ("--seeds=0", "--config.init_from=pretrained")
    assert sweep(trainer, *flags, "--config.mesh.auto=True")[0] == 0
    assert "config.mesh.data was 4" in sweep(trainer, *flags)[2][-1]


def test_inherited_keys_are_not_another_config(trainer):
    """The model of a finetuned run is that of the pretrained one, whatever the config says."""
    finetuning = ["--config.task=text_classification", "--config.init_from=pretrained"]
    written(trainer, **{"task": "text_classification", "model.layers": 7})
    code, _, messages = sweep(trainer, "--seeds=0", *finetuning)
    assert code == 2
    assert messages[-1].startswith("error: the run seed=0 ended with accuracy nan")
    (trainer.folder / "out" / "seed=0" / "result.json").write_text('{"eval": {"accuracy": 0.5}}')
    assert sweep(trainer, "--seeds=0", *finetuning)[0] == 0
    assert (
        "config.model.length was"
        in sweep(trainer, "--seeds=0", *finetuning, "--config.model.length=9")[2][-1]
    )


def test_points_differing_only_in_seed_and_rate_share_a_process(trainer):
    """The search of both sizes has a group each; then the seeds of the best point."""
    scores = {"learning_rate=1e-3": 20.0, "learning_rate=2e-3": 30.0}
    plan = {}
    for size, more in ((32, 0.0), (64, 5.0)):
        for rate, perplexity in scores.items():
            name = f"batch_size={size},optimizer.{rate},seed=3,data.search=True"
            plan[name] = perplexity + more
    trainer.plan(plan)
    code, printed, messages = sweep(
        trainer,
        "--grid=batch_size=32,64",
        "--grid=optimizer.learning_rate=1e-3,2e-3",
        "--seeds=3,0",
        "--together=4",
    )
    assert code == 0, messages
    members = [
        [Path(word).name for word in call if word.startswith("--member=")]
        for call in trainer.calls()
    ]
    assert members == [
        [name for name in plan if name.startswith("batch_size=32")],
        [name for name in plan if name.startswith("batch_size=64")],
        [f"batch_size=32,optimizer.learning_rate=1e-3,seed={seed}" for seed in (3, 0)],
    ]
    assert any(line.startswith("chosen: batch_size=32,") for line in printed)


def test_together_is_refused_for_remote_runs(trainer):
    message = trainer.refused(f"--config={TEXT}", "--choose=none", "--print", "--together=2")
    assert message == "--together trains here; --print and --on have a command for each run"
