"""What a sweep trains, in which order, what it selects and prints; a stand-in for the trainer
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


def name_of(rate: str, batch: int, seed: int) -> str:
    """The name of a run."""
    return f"optimizer.learning_rate={rate},batch_size={batch},seed={seed}"


def cells(line: str) -> list[str]:
    """The cells of a line of a Markdown table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_first_seed_selects_the_settings_of_the_others(trainer):
    """Lower perplexity is better; ties go to the first."""
    search = {
        f"{name_of('1e-3', 32, 3)},data.search=True": 30.0,
        f"{name_of('1e-3', 64, 3)},data.search=True": 20.0,
        f"{name_of('2e-3', 32, 3)},data.search=True": 40.0,
        f"{name_of('2e-3', 64, 3)},data.search=True": 20.0,
    }
    reported = {
        name_of("1e-3", 64, 3): 20.0,
        name_of("1e-3", 64, 1): 25.0,
        name_of("1e-3", 64, 2): 21.0,
    }
    runs = search | reported
    trainer.plan(runs)
    code, printed, messages = sweep(trainer, *GRID, "--seeds=3,1,2")
    assert code == 0, messages
    assert trainer.names() == list(runs)
    are_searched = ["--config.data.search=True" in call for call in trainer.calls()]
    assert are_searched == [True, True, True, True, False, False, False]
    for number, (name, perplexity) in enumerate(runs.items(), 1):
        message = messages[number - 1]
        assert message.startswith(f"{name}: perplexity {perplexity:.5g} ({number} of 7 runs")
    table = [cells(line) for line in printed if line.startswith("|")]
    header, _, first, *_, chosen = table
    assert len(table) == 7
    statistics = ["seeds", "median", "mean", "lowest", "highest", "perplexity of each seed"]
    assert header == ["", *statistics]
    assert first[0] == "optimizer.learning_rate=1e-3,batch_size=32,data.search=True"
    assert first[1:] == ["1", "30.0", "30.0", "30.0", "30.0", "30.0"]
    assert chosen[0] == "optimizer.learning_rate=1e-3,batch_size=64"
    assert chosen[1:] == ["3", "21.0", "22.0", "20.0", "25.0", "20.0 25.0 21.0"]
    settings = "optimizer.learning_rate=1e-3,batch_size=64"
    line = f"chosen: {settings}, for its perplexity with seed 3 on data held out"
    assert any(text.startswith(line) for text in printed)
    assert printed[-1] == f"the report: {trainer.folder}/out/report/index.html"
    assert trainer.report()["chosen"] == 4


def test_higher_accuracy_is_better(trainer):
    scores = {
        "batch_size=32,seed=0,data.search=True": 0.5,
        "batch_size=64,seed=0,data.search=True": 0.75,
        "batch_size=64,seed=0": 0.7,
    }
    trainer.plan({name: {"top1": top1, "loss": 1.0} for name, top1 in scores.items()})
    code, printed, messages = sweep(
        trainer, "--grid=batch_size=32,64", "--seeds=0", config="configs/quickstart_image.py"
    )
    assert code == 0, messages
    chosen = "chosen: batch_size=64, for its top1 with"
    assert any(line.startswith(chosen) for line in printed), messages


def test_report_holds_all_metrics_of_all_runs(trainer):
    first = {"perplexity": 10.0, "loss": 2.0}
    second = {"perplexity": 20.0, "loss": 4.0}
    trainer.plan({"seed=0": first, "seed=1": second})
    changes = ["--config.model.d_ffn=64", "--config.optimizer.freeze=('a', 'b')"]
    code, _, messages = sweep(trainer, "--seeds=0,1", *changes)
    assert code == 0, messages
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
                    {"seed": 0, "workdir": "seed=0", "eval": first},
                    {"seed": 1, "workdir": "seed=1", "eval": second},
                ],
                "summary": {
                    "perplexity": {"median": 15.0, "mean": 15.0, "lowest": 10.0, "highest": 20.0},
                    "loss": {"median": 3.0, "mean": 3.0, "lowest": 2.0, "highest": 4.0},
                },
            }
        ],
    }
    own = [f"--workdir={trainer.folder}/out/seed=1", f"--config={TEXT}"]
    seed = "--config.seed=1"
    assert trainer.calls()[1] == ["-m", "gmlp_flax.train", *own, *changes, seed]


@pytest.mark.parametrize("metrics", [{"perplexity": float("nan")}, {"loss": 1.0}])
def test_incomparable_run_is_refused(trainer, metrics):
    trainer.plan({"seed=0": metrics})
    code, _, messages = sweep(trainer, "--seeds=0")
    assert code == 2
    message = "the run seed=0 ended with perplexity nan: it cannot be compared"
    assert messages[-1].startswith(f"error: {message}")


def write_config(trainer: Trainer, **changes: object) -> Path:
    """Writes the config of a run that exists already, and returns its folder."""
    config = config_lib.changed(config_lib.from_file(TEXT), str(changes.get("task", "")))
    config.update_from_flattened_dict({"init_from": "pretrained", **changes})
    folder = trainer.folder / "out" / "seed=0"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config_lib.to_json(config))
    return folder


def test_run_with_another_config_is_not_counted(trainer):
    write_config(trainer, steps=7)
    message = trainer.refused(f"--config={TEXT}", "--seeds=1,0", "--config.init_from=pretrained")
    wrong = "is a run of another config (config.steps was 7 and is now 500): choose another folder"
    assert message.startswith(f"{trainer.folder}/out/seed=0 {wrong}")


def test_mesh_chosen_by_a_run_is_not_another_config(trainer):
    folder = write_config(trainer, **{"mesh.data": 4, "mesh.fsdp": 2, "mesh.tensor": 1})
    (folder / "result.json").write_text('{"eval": {"perplexity": 9}}')
    flags = ("--seeds=0", "--config.init_from=pretrained")
    code, _, messages = sweep(trainer, *flags, "--config.mesh.auto=True")
    assert code == 0, messages
    _, _, messages = sweep(trainer, *flags)
    assert "config.mesh.data was 4" in messages[-1]


def test_inherited_keys_are_not_another_config(trainer):
    """The model of a finetuned run is that of the pretrained one, whatever the config says."""
    finetuning = ["--config.task=text_classification", "--config.init_from=pretrained"]
    folder = write_config(trainer, **{"task": "text_classification", "model.layers": 7})
    code, _, messages = sweep(trainer, "--seeds=0", *finetuning)
    assert code == 2
    assert messages[-1].startswith("error: the run seed=0 ended with accuracy nan")
    (folder / "result.json").write_text('{"eval": {"accuracy": 0.5}}')
    code, _, messages = sweep(trainer, "--seeds=0", *finetuning)
    assert code == 0, messages
    _, _, messages = sweep(trainer, "--seeds=0", *finetuning, "--config.model.length=9")
    assert "config.model.length was" in messages[-1]


def members_of(call: list[str]) -> list[str]:
    """The names of the runs that a command trains together."""
    return [Path(word).name for word in call if word.startswith("--member=")]


def test_points_differing_only_in_seed_and_rate_share_a_process(trainer):
    """The search has a group for each size, and then the seeds of the best point have one."""
    small = {
        "batch_size=32,optimizer.learning_rate=1e-3,seed=3,data.search=True": 20.0,
        "batch_size=32,optimizer.learning_rate=2e-3,seed=3,data.search=True": 30.0,
    }
    large = {
        "batch_size=64,optimizer.learning_rate=1e-3,seed=3,data.search=True": 25.0,
        "batch_size=64,optimizer.learning_rate=2e-3,seed=3,data.search=True": 35.0,
    }
    trainer.plan(small | large)
    code, printed, messages = sweep(
        trainer,
        "--grid=batch_size=32,64",
        "--grid=optimizer.learning_rate=1e-3,2e-3",
        "--seeds=3,0",
        "--together=4",
    )
    assert code == 0, messages
    first, second, third = [members_of(call) for call in trainer.calls()]
    assert first == list(small)
    assert second == list(large)
    best = "batch_size=32,optimizer.learning_rate=1e-3"
    assert third == [f"{best},seed=3", f"{best},seed=0"]
    assert any(line.startswith("chosen: batch_size=32,") for line in printed)


def test_together_is_refused_for_remote_runs(trainer):
    message = trainer.refused(f"--config={TEXT}", "--choose=none", "--print", "--together=2")
    assert message == "--together trains here; --print and --on have a command for each run"
