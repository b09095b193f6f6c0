"""Commands whose run, weights or reports are in a bucket: several processes, attention, tables,
import and export."""

from pathlib import Path

import numpy as np
import pytest
from flax import traverse_util

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
    for path in (path for path in folder.rglob("*") if path.is_file()):
        store.write("runs", f"{prefix}/{path.relative_to(folder)}", path.read_bytes())


def test_two_processes(commands, store, text, tmp_path):
    """Both write parts of a checkpoint, are killed, and read their own part again; the bits are a
    local run's."""
    run_two(commands, text, f"--workdir={tmp_path / 'local'}")
    with two_processes(commands, text, "--workdir=gs://runs/two", **store.environment) as killed:
        await_line(killed[0], "^step 9/")
    first, _ = run_two(commands, text, "--workdir=gs://runs/two", **store.environment)
    assert "resuming gs://runs/two at step " in first.stderr
    assert_same(fetched(store, "two/", tmp_path), tmp_path / "local")


def test_attention_of_a_run_in_a_bucket(commands, store, text):
    run = "--workdir=gs://runs/attention"
    assert_done(
        commands(text, run, "--config.model.d_attn=4", "--config.steps=2", **store.environment)
    )
    drawn = commands(
        "attention", run, "--text=the of and", "--second=to in", command="draw", **store.environment
    )
    names = [
        f"gs://runs/attention/figures/{name}.png" for name in ("attention", "attention_layers")
    ]
    assert drawn.stdout.split() == names, drawn.stderr
    for name in names:
        assert store.read("runs", name.removeprefix("gs://runs/")).startswith(b"\x89PNG")


def test_table_of_runs_in_a_bucket(commands, store, tmp_path):
    from gmlp_flax import config as config_lib
    from tests.reports.test_runs import write_run

    changes = FLAGS | {"optimizer.lr_multipliers": ()}
    for row in ROWS:
        made = config_lib.from_file("configs/c4_ablation.py", f"{row},scale=small")
        made.update_from_flattened_dict(changes)
        write_run(tmp_path / "runs" / row, made, ((1, 400.0), (2, 300.0 + ROWS.index(row))))
    upload(store, tmp_path / "runs", "table")
    flags = [f"--config.{name}={value}" for name, value in changes.items()]
    for place, out in (
        (f"{tmp_path}/runs", f"{tmp_path}/reports"),
        ("gs://runs/table", "gs://runs/reports"),
    ):
        done = commands(
            "table3",
            f"--from={place}",
            f"--out={out}",
            "--",
            *flags,
            command="reproduce",
            **store.environment,
        )
        assert_done(done)
        assert f"the report: {out}/table3/index.html" in done.stdout
    files = sorted(
        path.relative_to(tmp_path) for path in (tmp_path / "reports").rglob("*") if path.is_file()
    )
    assert store.names("runs", "reports/") == sorted(map(str, files))
    table = (tmp_path / "reports" / "table3" / "table.csv").read_bytes()
    assert b",300" in table
    assert store.read("runs", "reports/table3/table.csv") == table


def test_import_into_a_bucket(commands, store, tmp_path):
    """Weights and tokenizer from a bucket, the run to a bucket; a second run is not written over
    it."""
    from gmlp_flax.data.text.tokenizer import Tokenizer

    state, _ = states.of_transformers("fnet")
    states.write_transformers(tmp_path, "fnet", state)
    with open(tiny.write_corpus(tmp_path / "corpus.jsonl")) as file:
        Tokenizer.train(list(file), 300).save(tmp_path / "spiece.model")
    for name in ("model.safetensors", "config.json", "spiece.model"):
        store.write("runs", f"fnet/{name}", (tmp_path / name).read_bytes())

    def imported(folder, out):
        return commands(f"--model={folder}", f"--out={out}", command="export", **store.environment)

    assert_done(imported("gs://runs/fnet", "gs://runs/imported"))
    assert_done(imported(tmp_path, tmp_path / "run"))
    told = [
        commands(
            f"--workdir={place}", command="predict", input="the [MASK] of\n", **store.environment
        )
        for place in ("gs://runs/imported", tmp_path / "run")
    ]
    assert told[0].stdout == told[1].stdout, told[0].stderr
    assert "[MASK] 1:" in told[0].stdout, told[0].stderr
    again = imported("gs://runs/fnet", "gs://runs/imported")
    assert_one_line_error(again, "gs://runs/imported holds config.json already")
    assert_one_line_error(imported("gs://runs/no", "gs://runs/none"), "gs://runs/no")
    assert not store.names("runs", "none")


def test_export_to_a_bucket(commands, store, tmp_path):
    """The smallest model that timm has, from a bucket to a bucket: the same weights."""
    weights = tmp_path / "gmlp_ti16_224.safetensors"
    state, params = states.of_timm("gmlp_ti16_224", 2)
    states.write(weights, state)
    assert_done(
        commands(
            f"--model={weights}", "--out=gs://runs/timm", command="export", **store.environment
        )
    )
    assert_done(
        commands(
            "--model=gs://runs/timm", "--out=gs://runs/out", command="export", **store.environment
        )
    )
    (tmp_path / "out.safetensors").write_bytes(store.read("runs", "out/model.safetensors"))
    found = weight_files.read(str(tmp_path / "out.safetensors"))
    for key, leaf in traverse_util.flatten_dict(params, sep="/").items():
        np.testing.assert_array_equal(found[key], leaf)
    assert not Path("gs:").exists()
