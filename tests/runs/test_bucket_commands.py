"""Commands whose run, weights or reports are in a bucket: several processes, attention, tables,
import and export."""

from pathlib import Path

import pytest
from flax import traverse_util
from numpy.testing import assert_array_equal

from gmlp_flax.io import weight_files
from tests import buckets
from tests.runs.command import assert_done, assert_one_line_error, await_line
from tests.runs.processes import run_two, two_processes
from tests.runs.test_buckets import assert_same, fetched
from tests.runs.test_reproduce import FLAGS
from tests.training import tiny
from tests.weights import states

pytestmark = pytest.mark.slow

ROWS = ("bert", "bert_rel", "bert_rel_only", "mixer", "linear", "additive", "multiplicative", "sgu")


def upload(store: buckets.Store, folder: Path, prefix: str) -> None:
    """Writes the files of a folder to the bucket `runs`."""
    for path in folder.rglob("*"):
        if path.is_file():
            name = path.relative_to(folder)
            store.write("runs", f"{prefix}/{name}", path.read_bytes())


@pytest.mark.nightly
def test_two_processes(commands, store, text, tmp_path):
    """Both processes write parts of a checkpoint, are killed, and read their own part again. The result
    is bit identical to that of a local run."""
    run_two(commands, text, f"--workdir={tmp_path / 'local'}")
    with two_processes(commands, text, "--workdir=gs://runs/two", **store.environment) as killed:
        await_line(killed[0], "^step 9/")
    first, _ = run_two(commands, text, "--workdir=gs://runs/two", **store.environment)
    assert "resuming gs://runs/two at step " in first.stderr
    folder = fetched(store, "two/", tmp_path)
    assert_same(folder, tmp_path / "local")


@pytest.mark.nightly
def test_attention_of_a_run_in_a_bucket(commands, store, text):
    run = "--workdir=gs://runs/attention"
    flags = ("--config.model.d_attn=4", "--config.steps=2")
    done = commands(text, run, *flags, **store.environment)
    assert_done(done)
    texts = ("--text=the of and", "--second=to in")
    drawn = commands("attention", run, *texts, command="draw", **store.environment)
    folder = "attention/figures"
    names = [f"{folder}/attention.png", f"{folder}/attention_layers.png"]
    paths = [f"gs://runs/{name}" for name in names]
    assert drawn.stdout.split() == paths, drawn.stderr
    for name in names:
        assert store.read("runs", name).startswith(b"\x89PNG")


@pytest.mark.nightly
def test_table_of_runs_in_a_bucket(commands, store, tmp_path):
    from gmlp_flax import config as config_lib
    from tests.reports.test_runs import write_run

    changes = FLAGS | {"optimizer.lr_multipliers": ()}
    for number, row in enumerate(ROWS):
        made = config_lib.from_file("configs/c4_ablation.py", f"{row},scale=small")
        made.update_from_flattened_dict(changes)
        evaluations = ((1, 400.0), (2, 300.0 + number))
        run_folder = tmp_path / "runs" / row
        write_run(run_folder, made, evaluations)
    upload(store, tmp_path / "runs", "table")
    flags = []
    for name, value in changes.items():
        flags.append(f"--config.{name}={value}")
    local = (f"{tmp_path}/runs", f"{tmp_path}/reports")
    remote = ("gs://runs/table", "gs://runs/reports")
    for runs, out in (local, remote):
        arguments = ("table3", f"--from={runs}", f"--out={out}", "--", *flags)
        done = commands(*arguments, command="reproduce", **store.environment)
        assert_done(done)
        assert f"the report: {out}/table3/index.html" in done.stdout
    files = set()
    for path in (tmp_path / "reports").rglob("*"):
        if path.is_file():
            files.add(str(path.relative_to(tmp_path)))
    assert set(store.names("runs", "reports/")) == files
    table = (tmp_path / "reports" / "table3" / "table.csv").read_bytes()
    assert b",300" in table
    assert store.read("runs", "reports/table3/table.csv") == table


@pytest.mark.nightly
def test_import_into_a_bucket(commands, store, tmp_path):
    """Weights and tokenizer are read from a bucket, and the run is written to a bucket. A second import
    does not overwrite it."""
    from gmlp_flax.data.text.tokenizer import Tokenizer

    state, _ = states.of_transformers("fnet")
    states.write_transformers(tmp_path, "fnet", state)
    with open(tiny.write_corpus(tmp_path / "corpus.jsonl")) as file:
        tokenizer = Tokenizer.train(list(file), 300)
        tokenizer.save(tmp_path / "spiece.model")
    for name in ("model.safetensors", "config.json", "spiece.model"):
        content = (tmp_path / name).read_bytes()
        store.write("runs", f"fnet/{name}", content)

    def imported(folder, out):
        return commands(f"--model={folder}", f"--out={out}", command="export", **store.environment)

    assert_done(imported("gs://runs/fnet", "gs://runs/imported"))
    assert_done(imported(tmp_path, tmp_path / "run"))

    def predicted(workdir):
        return commands(
            f"--workdir={workdir}", command="predict", input="the [MASK] of\n", **store.environment
        )

    remote = predicted("gs://runs/imported")
    local = predicted(tmp_path / "run")
    assert remote.stdout == local.stdout, remote.stderr
    assert "[MASK] 1:" in remote.stdout, remote.stderr
    again = imported("gs://runs/fnet", "gs://runs/imported")
    assert_one_line_error(again, "gs://runs/imported holds config.json already")
    assert_one_line_error(imported("gs://runs/no", "gs://runs/none"), "gs://runs/no")
    assert not store.names("runs", "none")


def test_export_to_a_bucket(commands, store, tmp_path):
    """The weights of timm's smallest model are exported from a bucket to a bucket."""
    weights = tmp_path / "gmlp_ti16_224.safetensors"
    state, params = states.of_timm("gmlp_ti16_224", 2)
    states.write(weights, state)

    def export(model, out):
        done = commands(f"--model={model}", f"--out={out}", command="export", **store.environment)
        assert_done(done)

    export(weights, "gs://runs/timm")
    export("gs://runs/timm", "gs://runs/out")
    (tmp_path / "out.safetensors").write_bytes(store.read("runs", "out/model.safetensors"))
    found = weight_files.read(str(tmp_path / "out.safetensors"))
    flat = traverse_util.flatten_dict(params, sep="/")
    for key, leaf in flat.items():
        assert_array_equal(found[key], leaf)
    assert not Path("gs:").exists()
