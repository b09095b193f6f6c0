"""The command that reproduces the paper's tables, on finished runs; training is in tests/runs."""

import signal
import subprocess
import sys

import pytest

from gmlp_flax.paper.tables import TABLES
from tests import preloaded
from tests.custom_blocks import AVERAGING
from tests.reports.alternatives.test_submitting import write_own
from tests.reports.test_language_models import write_runs
from tests.reports.test_runs import write_run

MLM = ("alternatives", "--columns=mlm=setup.cfg", "--rows=sgu")
TUNED = ("table4", "--data=setup.cfg", "--finetune=sst2=setup.cfg")


@pytest.mark.slow
def test_report_of_existing_runs(tmp_path):
    write_runs(tmp_path / "runs")
    done = preloaded.gmlp(
        "reproduce", "table3", f"--from={tmp_path}/runs/*", f"--out={tmp_path}/reports"
    )
    assert done.returncode == 0, done.stderr
    assert "| sgu | 0.659 | 31.0 ± 1.4 | 2 | 4.35 | +26.6 | 0.004 |" in done.stdout
    assert "| sgu < multiplicative | " in done.stdout
    assert done.stdout.splitlines()[-1] == f"the report: {tmp_path}/reports/table3/index.html"
    assert (tmp_path / "reports" / "table3" / "index.html").exists()


def test_parameter_counts_need_no_runs(tmp_path):
    done = preloaded.gmlp("reproduce", "table1", f"--out={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "| gmlp_b_cls | 73.4 | 73.4 | \u22120.05 |" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table9",), "'table9'"),
        (("table3",), "--data is without its data: at scale cpu give --data=PATH"),
        (
            ("table4", "--data=setup.cfg", "--finetune=cola=y"),
            "--finetune=cola: table4 takes sst2, mnli",
        ),
        (("table3", "--data=setup.cfg", "--finetune=sst2=y"), "--finetune=sst2: table3 takes none"),
        (
            ("table4", "--data=setup.cfg", "--finetune=sst2"),
            "--finetune=sst2 is without its data: at scale cpu give",
        ),
        (("table3", "--data=/missing"), "--data=/missing: there is no such file or folder"),
        ((*TUNED, "--finetune_seeds=0,x"), "--finetune_seeds=0,x: expected numbers"),
        ((*TUNED, "--finetune_flag=--config.step=3"), "did you mean 'steps'"),
        ((*TUNED, "--finetune_flag=steps=3"), "expected --config.KEY=VALUE"),
        (("table4", "--data=setup.cfg", "--", "--config.step=3"), "did you mean 'steps'"),
        (("table4", "--from=x", "--finetune=sst2=y"), "--finetune and --from=x exclude each other"),
        (("table3", "--from=/missing"), "/missing holds no run of bert, bert_rel"),
        (("table3", "--from=tests"), "tests holds no run of bert, bert_rel"),
        (("table3", "--data=setup.cfg", "--jobs=0"), "--jobs=0"),
        ((), "NAME is missing"),
        (("table4", "--from=x", "--rows=sgu"), "--rows is not for table4"),
        (("table6", "--from=x", "--match=none"), "--match is not for table6"),
        (("table3", "--from=x", "--rows=sgu,missing.blocks:Block"), "cannot be imported"),
        (
            ("recall", "--from=x", "--rows=tests.custom_blocks:AVERAGING"),
            "expected a class that extends gmlp_flax.models.blocks.base.Block",
        ),
        (("table1", "--data=setup.cfg"), "--data is not for table1"),
        (("table4", "--finetune=table4=setup.cfg"), "--finetune=table4: table4 takes sst2, mnli"),
        (
            ("alternatives", "--columns=costs", "--rows=sgv"),
            "--rows: there is no 'sgv'; did you mean 'sgu'?",
        ),
        (("alternatives", "--columns=costs", "--lengths=a"), "--lengths=a: expected numbers"),
        (
            ("alternatives", "--columns=costs", "--finetune=sst2=x"),
            "--finetune is not for alternatives",
        ),
        (
            ("alternatives", "--from=/missing"),
            "/missing holds no run and no measurement of alternatives",
        ),
        (
            ("alternatives", "--from=x", "--columns=costs"),
            "--columns and --from=x exclude each other",
        ),
        (("recall", "--rows=sgv"), "--rows: there is no 'sgv'; did you mean 'sgu'?"),
        (("recall", "--scale=gpu"), "--scale=gpu: recall takes cpu or paper"),
        (("recall", "--widths=48"), "--widths=48: recall at this scale has 16, 32, 64"),
        (("recall", "--lengths=256"), "--lengths=256: recall at this scale has 64, 128"),
        (("table3", "--widths=32"), "--widths is not for table3"),
        (("recall", "--data=setup.cfg"), "--data is not for recall"),
        (("recall", "--columns=mlm"), "--columns is not for recall"),
        (("recall", "--from=/missing"), "/missing holds no finished run of recall"),
        (("recall", "--submit=x.csv"), "--submit is not for recall"),
        (("table3", "--with=x.csv"), "--with is not for table3"),
        (("table1", "--slices"), "--slices is not for table1"),
        (("alternatives", "--submit=x.csv"), "--submit=x.csv needs --from=RUNS"),
        (("alternatives", "--from=x", "--with=setup.cfg"), "setup.cfg has other columns"),
        ((*MLM, "--with=setup.cfg"), "setup.cfg has other columns"),
        (
            ("alternatives", "--columns=mlm=setup.cfg,costs", "--lengths=128,8"),
            "--lengths has 8: expected numbers of tokens from 32 to 1,048,576",
        ),
        (("recall", "--rows=sgu", "--match=layers"), "--match=layers is for your own block"),
        (("recall", "--widths=a"), "--widths=a: expected numbers, as in --widths=16,32,64"),
        (
            ("recall", "--rows=tests.custom_blocks:Shortening"),
            "Shortening returns (1, 63, 16) for tokens of shape (1, 64, 16)",
        ),
        (("recall", "--rows=tests.custom_blocks:Raising"), "KeyError: 'raised by a block'"),
        (("recall", "--rows=tests.custom_blocks:Logarithm"), "Logarithm returns NaN"),
        ((*MLM, "--rows=tests.custom_blocks:Logarithm"), "Logarithm returns NaN"),
        (
            (
                "alternatives",
                "--columns=mlm=setup.cfg,sst2=setup.cfg",
                "--rows=tests.custom_blocks:Unpadded",
            ),
            "Unpadded with a padding_mask raises NotImplementedError: no padding",
        ),
        (
            ("recall", "--rows=tests.custom_blocks.Averaging"),
            "a class has a colon between its module and its name: tests.custom_blocks:Averaging",
        ),
    ],
)
def test_user_errors_are_one_line(tmp_path, arguments, message):
    error_message = preloaded.refused("reproduce", f"--out={tmp_path}", *arguments)
    assert message in error_message
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly  # it starts three processes
def test_last_line_reports_that_all_runs_failed(tmp_path):
    """Their block raises in training, and each run is reported with its exception."""
    row = "tests.custom_blocks:RaisingInBatches"
    words = (f"--rows={row}", "--widths=16", "--lengths=64", f"--runs={tmp_path}/runs")
    done = preloaded.gmlp("reproduce", "recall", *words, f"--out={tmp_path}")
    assert done.returncode == 2
    *lines, last = done.stderr.splitlines()
    assert "no run has a result, so there is no report: some runs failed" in last
    reasons = [line for line in lines if "failed (KeyError: 'raised in training')" in line]
    assert len(reasons) == 6  # each once when it ends, and again at the end


@pytest.mark.slow  # it measures for some seconds
def test_stopped_measurement_leaves_no_process(tmp_path):
    """A remaining process would keep stdout open."""
    words = ["--columns=costs", "--rows=sgu", "--lengths=128", f"--runs={tmp_path}/runs"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gmlp_flax", "reproduce", "alternatives", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    while process.stdout.readline().strip() != "mixers":
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130  # as after Ctrl-C
    assert not list((tmp_path / "runs").rglob("*.json"))


@pytest.mark.slow
def test_row_is_submitted_and_shown(tmp_path):
    write_own(tmp_path / "own")
    write_runs(tmp_path / "ours", "alternatives", {"sgu": ((60.0, 50.0),)})
    path = tmp_path / "rows.csv"
    arguments = ("alternatives", f"--from={tmp_path}/own", f"--submit={path}", "--name=my_mixer")
    done = preloaded.gmlp("reproduce", *arguments)
    assert done.returncode == 0, done.stderr
    assert "my_mixer: median perplexity 45" in done.stdout
    assert "my_mixer" in preloaded.refused("reproduce", *arguments)
    shown = preloaded.gmlp(
        "reproduce",
        "alternatives",
        f"--from={tmp_path}/ours",
        f"--with={path}",
        f"--out={tmp_path}/reports",
    )
    assert shown.returncode == 0, shown.stderr
    table = (tmp_path / "reports" / "alternatives" / "table.md").read_text()
    assert "| my_mixer (submitted) |" in table
    assert (tmp_path / "reports" / "alternatives" / "submitted.csv").exists()


def test_table_of_some_rows_and_a_class(tmp_path):
    """The class is named on the command line, which the user controls, so its runs are read."""
    table = TABLES["table3"].of_rows(("sgu", AVERAGING))
    rows = table.configs("cpu")
    perplexities = {"sgu": 31.0, AVERAGING: 29.0}
    for row, perplexity in perplexities.items():
        config = rows[row].copy_and_resolve_references()
        config.data.train = "books.jsonl"
        name = row.replace(":", "_")
        write_run(tmp_path / "runs" / name, config, ((900, perplexity),), True)
    done = preloaded.gmlp(
        "reproduce",
        "table3",
        f"--rows=sgu,{AVERAGING}",
        f"--from={tmp_path}/runs",
        f"--out={tmp_path}/reports",
    )
    assert done.returncode == 0, done.stderr
    table_lines = {}
    for line in done.stdout.splitlines():
        if line.startswith("| "):
            name, *_ = line.strip("| ").split(" | ")
            table_lines[name] = line
    assert "| 29.0 |" in table_lines[AVERAGING]
    assert "| 31.0 |" in table_lines["sgu"]
    assert "bert" not in table_lines
