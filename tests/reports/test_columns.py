"""What `gmlp reproduce alternatives` would run, what it refuses, and how each column resumes
separately."""

import json
import subprocess
from pathlib import Path

import pytest

from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.paper.alternatives import COLUMNS, COST_LENGTHS, ROWS
from gmlp_flax.reports import columns
from gmlp_flax.sweeps import states, training
from gmlp_flax.sweeps.definition import from_file
from tests import preloaded
from tests.custom_blocks import AVERAGING
from tests.reports import made_up_columns
from tests.reports.test_runs import write_run

ROW = ("sgu", "fnet")


def plan(folder, *names, **options):
    data = dict.fromkeys(names, "embedded")
    return columns.Plan("alternatives", data, ROW, "cpu", str(folder), **options)


@pytest.fixture
def trained(monkeypatch):
    """Records the sweeps that would be trained, and their numbers of jobs; none of them fails."""
    sweeps = []

    def train(sweep, jobs, together, progress):
        sweeps.append((sweep, jobs))
        return True

    monkeypatch.setattr(training, "train", train)
    return sweeps


@pytest.fixture
def measured(monkeypatch):
    """Records the arguments of the commands that would measure."""
    commands = []

    def run(arguments):
        start = arguments.index("mixers") + 1
        commands.append(arguments[start:])
        return subprocess.CompletedProcess([], 0)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_columns_and_their_data():
    found = columns.parse(["costs", "mlm=a/b", "sst2=tfds:glue/sst2"])
    assert found == {"mlm": "a/b", "sst2": "tfds:glue/sst2", "costs": ""}
    with pytest.raises(ConfigError, match="--columns: there is no 'sst'; did you mean 'sst2'?"):
        columns.parse(["sst"])


def test_trained_column_is_one_sweep(tmp_path, trained):
    changes = {"model.layers": "1", "model.vocab_size": "500"}
    assert columns.make(plan(tmp_path, "mlm", "cifar10", jobs=2, changes=changes)) == []
    (mlm, jobs), (cifar10, _) = trained
    assert mlm.out == str(tmp_path)
    assert cifar10.out == f"{tmp_path}/cifar10"
    assert jobs == 2
    assert mlm.overrides == {"data.train": "embedded", "model.layers": 1, "model.vocab_size": 500}
    assert cifar10.overrides == {"data.train": "embedded", "model.layers": 1}  # no vocabulary
    sweeps = {"mlm": mlm, "cifar10": cifar10}
    for name, sweep in sweeps.items():  # as `gmlp sweep` trains it
        expected = from_file(f"alternatives:{name},rows=sgu+fnet")
        found = [trial.point for trial in sweep.trials]
        assert found == list(expected)
    assert len(mlm.trials) == 6
    for trial in mlm.trials:
        assert trial.config.batch_size == 16


@pytest.mark.slow
def test_runs_are_counted_over_all_columns(tmp_path, monkeypatch):
    """Two rows of masked LM have three seeds, and each is then finetuned from its own and from random
    parameters. A row that has no run in the end is not finetuned."""
    counts = []

    def train(sweep, jobs, together, progress):
        progress.begin_sweep(states.work_of(sweep))
        counts.append(progress.runs)
        for _ in sweep.trials:
            progress.end_run()
        if sweep.out == str(tmp_path):
            values = {"sgu": ((9.0, 8.0), (9.0, 7.0))}
            made_up_columns.write_runs(tmp_path, "alternatives", values)
        return True

    monkeypatch.setattr(training, "train", train)
    assert columns.make(plan(tmp_path, "mlm", "imdb")) == []
    assert counts == [6 + 4, 6 + 2, 6 + 2]
    counts.clear()
    data = {"table3": "embedded"}
    rows = ("sgu", AVERAGING)
    searched = columns.Plan("table3", data, rows, "cpu", str(tmp_path / "other"))
    [problem] = columns.make(searched)
    assert "the best rate of" in problem
    assert counts == [5 + 6]


@pytest.mark.slow
def test_column_with_a_search_trains_at_the_best_rate(tmp_path, monkeypatch):
    """The rate with the lowest perplexity. Diverged rates have none, and are named as failures."""
    trained = []

    def train(sweep, jobs, together, progress):
        trained.append((sweep.out, jobs, together, len(sweep.trials)))
        for trial in sweep.trials:
            rate = trial.config.optimizer.learning_rate
            folder = Path(sweep.out, trial.name)
            folder.mkdir(parents=True)
            perplexity = 30.0 + abs(rate - 4e-3)
            result = {"step": trial.config.steps, "eval": {"perplexity": perplexity}}
            (folder / "result.json").write_text(json.dumps(result))
            rates.append(rate)
        return True

    rates = []
    monkeypatch.setattr(training, "train", train)
    assert columns.make(plan(tmp_path, "longer", jobs=2, together=5)) == []
    assert trained == [
        (f"{tmp_path}/longer/search", 2, 5, 10),
        (f"{tmp_path}/longer", 2, 5, 6),
    ]
    assert rates[10:] == [4e-3] * 6
    search = tmp_path / "longer" / "search"
    for path in search.glob("*sgu*/result.json"):
        path.unlink()
    for path in search.glob("*fnet*learning_rate=0.004/result.json"):
        path.unlink()
    failed = []

    def fail(sweep, jobs, together, progress):
        failed.append(sweep)
        return False

    monkeypatch.setattr(training, "train", fail)
    [problem] = columns.make(plan(tmp_path, "longer"))
    assert "longer: the best rate of sgu is not known, as no run of its search in" in problem
    fnet = plan(tmp_path, "longer")._replace(rows=("fnet",))
    [problem] = columns.make(fnet)
    assert problem == "longer: some runs failed"
    rates = [trial.config.optimizer.learning_rate for trial in failed[-1].trials]
    assert rates == [2e-3] * 3


@pytest.mark.slow
@pytest.mark.parametrize("table", ["alternatives", "table3"])
def test_learning_rate_of_a_class_is_searched_at_cpu_scale(tmp_path, monkeypatch, table):
    """The rows of the package have their rates already, and a rate on the command line holds for all
    rows."""
    trained = []

    def train(sweep, jobs, together, progress):
        folder = Path(sweep.out).relative_to(tmp_path)
        for trial in sweep.trials:
            config = trial.config
            rate = config.optimizer.learning_rate
            trained.append((str(folder), config.model.block, config.seed, rate))
            perplexity = 30.0 + abs(rate - 8e-3)
            result = {"step": 900, "eval": {"perplexity": perplexity}}
            path = Path(sweep.out, trial.name)
            path.mkdir(parents=True)
            (path / "result.json").write_text(json.dumps(result))
        return True

    monkeypatch.setattr(training, "train", train)
    name = "mlm" if table == "alternatives" else table
    made = columns.Plan(table, {name: "embedded"}, ("sgu", AVERAGING), "cpu", str(tmp_path))
    assert columns.make(made) == []
    searched = [("search", AVERAGING, 100, rate) for rate in (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)]
    seeds = [(".", "gmlp", seed, 4e-3) for seed in (0, 1, 2)]
    seeds += [(".", AVERAGING, seed, 8e-3) for seed in (0, 1, 2)]
    assert trained == searched + seeds
    trained.clear()
    changes = {"optimizer.learning_rate": "0.1"}
    fixed = made._replace(runs=str(tmp_path / "fixed"), changes=changes)
    columns.make(fixed)
    assert trained
    for folder, _, _, rate in trained:
        assert folder == "fixed"
        assert rate == 0.1


def test_module_of_a_finetuned_class_is_trusted(tmp_path, trained):
    config = COLUMNS["mlm"].configs("cpu", [AVERAGING])[AVERAGING]
    config.data.train = "books.jsonl"
    write_run(tmp_path / "averaging", config, ((900, 9.0),))
    made = plan(tmp_path, "imdb", finetune_seeds=(0,))._replace(rows=(AVERAGING,))
    assert columns.make(made) == []
    sweep, _ = trained[0]
    [trial] = sweep.trials
    assert Path(sweep.out).name == "imdb-tests.custom_blocks_Averaging"
    assert trial.flags[-1] == "--trust=tests.custom_blocks"
    assert trial.config.init_from == f"{tmp_path}/averaging"


def test_interrupted_cost_measurements_resume(tmp_path, measured):
    made_up_columns.write_cost(tmp_path, "sgu", 128, (1.0,))
    assert columns.make(plan(tmp_path, "costs", lengths=(128, 512))) == []
    missing = (("sgu", 512), ("fnet", 128), ("fnet", 512))
    expected = [[f"--rows={row}", f"--lengths={length}"] for row, length in missing]
    found = [arguments[:2] for arguments in measured]
    assert found == expected
    assert f"--json={tmp_path}/costs/sgu-512.json" in measured[0]
    assert len(COST_LENGTHS) == 8


def test_finetuning_starts_from_the_first_finished_run_and_from_random_parameters(
    tmp_path, trained
):
    made_up_columns.write_runs(tmp_path, "alternatives", {"sgu": ((9.0, 8.0), (9.0, 7.0))})
    columns.make(plan(tmp_path, "imdb", finetune_seeds=(4,), finetune_changes={"steps": "50"}))
    outs = [sweep.out for sweep, _ in trained]
    assert outs == [f"{tmp_path}/finetuned/imdb-sgu", f"{tmp_path}/finetuned/imdb-sgu-random"]
    for (sweep, _), start in zip(trained, (True, False), strict=True):
        assert sweep.source == "finetune_glue:own,scale=small"
        [trial] = sweep.trials
        config = trial.config
        assert config.seed == 4
        assert config.init_from == f"{tmp_path}/sgu-0"
        assert config.init_parameters == start
        assert config.data.train == "embedded"
        assert config.model.length == 128
        assert config.steps == 50  # not the column's own 150


def test_failed_column_does_not_stop_the_others(tmp_path, measured):
    [problem] = columns.make(plan(tmp_path, "sst2", "costs", lengths=(128,)))
    assert problem.startswith(f"sst2: {tmp_path} holds")
    assert len(measured) == 2


def test_failures_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "train", lambda *_, **options: False)
    monkeypatch.setattr(subprocess, "run", lambda words: subprocess.CompletedProcess(words, 2))
    runs, costs = columns.make(plan(tmp_path, "mlm", "costs"))
    assert runs.startswith("mlm: some runs failed")
    assert costs.startswith("costs: gmlp benchmark ended with exit code 2: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": {"mlm": ""}}, "--columns=mlm is without its data"),
        ({"data": {"mlm": "/missing"}}, "--columns=mlm=/missing"),
        ({"data": {"listops": "embedded"}, "scale": "paper"}, "ListOps (%) has no scale paper"),
        (
            {"data": {"cifar10": "embedded"}, "scale": "paper"},
            "CIFAR-10, top-1 (%) has no scale paper",
        ),
        ({"changes": {"steps": "x"}}, "config.steps=x"),
        (
            {"changes": {"augment.mixup": "1"}},
            "--config.augment.mixup=1: no run of mlm has such a key",
        ),
        ({"data": {"sst2": "embedded"}, "finetune_changes": {"masking.rate": "1"}}, "masking.rate"),
        (
            {"data": {"cifar10": "embedded"}, "changes": {"steps": "9"}},
            "--config.steps and the sweep set the same key",
        ),
    ],
)
def test_column_without_its_requirements_is_refused(tmp_path, options, message):
    incomplete = plan(tmp_path, "mlm")._replace(**options)
    with pytest.raises((ConfigError, RunError)) as caught:
        columns.check(incomplete)
    assert message in str(caught.value)


@pytest.mark.slow
def test_report_of_existing_columns(tmp_path):
    made_up_columns.write_everything(tmp_path / "runs")
    done = preloaded.gmlp(
        "reproduce", "alternatives", f"--from={tmp_path}/runs", f"--out={tmp_path}/reports"
    )
    assert done.returncode == 0, done.stderr
    assert "| bert | 2 | 0.397 | " in done.stdout
    assert "FNet is faster than BERT" in done.stdout
    for name in ("index.html", "table.csv", "speed_mlm.svg", "costs.png"):
        assert (tmp_path / "reports" / "alternatives" / name).exists()
    assert len(ROWS) == 27
