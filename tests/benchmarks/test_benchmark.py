"""The benchmark's arithmetic and its quick parts. The speed itself is not tested."""

import io
import json
import math
import os
import tarfile
import time

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image

from gmlp_flax import config
from gmlp_flax.benchmarks import device, images, peers, timing
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.planning import dry_run
from gmlp_flax.training import step
from tests import preloaded
from tests.failures import raised


def test_candidates_are_interleaved_after_a_warmup():
    order = []
    candidates = {
        "a": lambda: order.append("a"),
        "b": lambda: order.append("b"),
    }
    seconds = timing.measure(candidates, repeats=2)
    assert order == ["a", "a", "b", "b", "a", "a", "b", "b"]
    assert seconds.keys() == {"a", "b"}
    for repeats in seconds.values():
        assert len(repeats) == 2
    row = timing.row("x", [3.0, 1.0, 2.0], "s", "<= 4")
    assert row["median"] == 2.0
    assert row["min"] == 1.0
    assert row["max"] == 3.0
    assert row["goal"] == "<= 4"
    assert timing.ratios([4.0, 9.0], [2.0, 3.0]) == [2.0, 3.0]


@pytest.mark.parametrize(
    ("values", "goal", "expected"),
    [
        ([1.2, 1.0, 1.3], ">= 1.2", "reached"),
        ([1.2, 1.0, 1.3], ">= 1.21", "missed"),
        ([8.4], "<= 8.5", "reached"),
        ([8.6], "<= 8.5", "missed"),
        ([0.9, 1.5, 1.3], ">= 1.0", "no verdict, the repeats differ by 67 %"),
        ([0.9, 1.2], ">= 1.0", "reached"),  # by exactly a third
        ([0.9, 1.5, 1.3], "", ""),
    ],
)
def test_verdicts_need_repeats_that_agree(values, goal, expected):
    row = timing.row("x", values, "", goal)
    assert row["verdict"] == expected


def test_unknown_parts_are_refused_in_one_line():
    assert "'steps'; did you mean 'step'?" in preloaded.refused("benchmark", "steps")


def test_jpegs_of_a_tar_and_of_a_folder(tmp_path):
    archive = tmp_path / "flat.tar"
    folder = tmp_path / "folder"
    contents = {"b.JPEG": b"2", "a.jpg": b"1", "list.txt": b"no", "c/d.jpeg": b"3"}
    with tarfile.open(archive, "w") as tar:
        for name, data in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            tar.add(path, name)
    assert images.jpegs(str(archive)) == [b"1", b"2", b"3"]
    assert images.jpegs(str(folder)) == [b"1", b"2", b"3"]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="jpeg file in '.*empty'"):
        images.jpegs(str(empty))


def test_both_candidates_of_the_images_part_decode_the_same_images():
    """Else their speeds could not be compared: the same crops, flips and operations, a few grey
    levels apart."""
    [data] = images.made_up(1)
    assert 50_000 < len(data) < 150_000
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (500, 375)
    for stage, calls in images.STAGES.items():
        most = 0 if stage == "decode" else 12
        for seed in range(6):
            levels = []
            for call in calls:
                rng = np.random.default_rng(seed)
                pixels = call(data, rng)
                whole_numbers = np.asarray(pixels).astype(int)
                levels.append(whole_numbers)
            plain, ours = levels
            assert plain.shape == ours.shape, stage
            differences = abs(plain - ours)
            median = np.median(differences)
            assert median <= most, (stage, seed)


def tiny_text():
    options = config.from_file("configs/quickstart_text.py")
    options.model.update(layers=1, length=16, d_model=8, d_ffn=16, vocab_size=300)
    options.batch_size = 8
    return options


@pytest.mark.slow
def test_steps_are_compiled_once(monkeypatch):
    """Else the first one that is timed would be a compilation."""
    made = []
    original = step.Training

    def make(*arguments):
        training = original(*arguments)
        made.append(training)
        return training

    monkeypatch.setattr(step, "Training", make)
    call = timing.step_call(tiny_text())
    for _ in range(3):
        call()
    first, *_ = made
    assert first.step._cache_size() == 1


TINY = device.Device("float32", 256, 64, (32,), 2, 2)


def rows_of(parts):
    return {row["name"]: row for row in parts}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "seconds", "best", "tried"),
    [
        # the first that fits, however slow
        (False, [0.2, 0.1], "batch 2, remat none, unrolled", 1),
        (True, [0.2, 0.1], "batch 2, remat matmuls", 2),
        (True, [0.1, 0.2], "batch 2, remat none, unrolled", 2),
        (False, [None, 0.1], "batch 2, remat matmuls", 2),  # None: does not fit
    ],
)
def test_settings_of_a_model(monkeypatch, every, seconds, best, tried):
    calls = []
    alone = not every and seconds[0]

    def measured(function, model, setting, *_):
        calls.append(setting)
        taken = seconds[len(calls) - 1]
        return taken and device.Measured(setting, [taken], [1e9], 2e9)

    monkeypatch.setattr(device, "in_own_process", measured)
    fastest = {}
    model = device.MODELS[1]._replace(every=every, file="quickstart_image.py", argument="")
    found_rows = device.model_rows(model, TINY, 1, math.inf, fastest)
    rows = rows_of(found_rows)
    assert len(calls) == tried
    assert str(calls[0]) == "batch 2, remat none, unrolled"
    rate = rows[f"gMLP-S, {best}: rate"]["median"]
    step_ms = rows["gMLP-S: step"]["median"]
    expected = pytest.approx(2e3 / step_ms)
    assert rate == fastest["gMLP-S"] == expected
    assert step_ms == pytest.approx(200 if alone else 100)
    assert rows["gMLP-S: memory at its peak"]["median"] == 2.0


def test_the_device_part_stops_at_its_time_and_leaves_out_failed_models(monkeypatch, capsys):
    """Nothing after its time; a part that fails costs the others nothing."""
    begun = []

    def of_model(model, *_):
        begun.append(model.argument)
        if model.argument == "gmlp_b":
            raise RunError("the process that ran it has died")
        yield {"name": model.name}

    monkeypatch.setattr(device, "model_rows", of_model)
    monkeypatch.setattr(device, "peer_rows", lambda name, *_: iter([{"name": name}]))
    rows = list(device.bench_device(1, ["gmlp_b", "gmlp_s"], 1))
    assert rows == [{"name": "gMLP-S"}, {"name": "gMLP-S"}]
    assert begun == ["gmlp_b", "gmlp_s"]
    assert "gMLP-B is left out: the process" in capsys.readouterr().err
    assert not list(device.bench_device(1, [], 0))
    assert "gMLP-B and what follows" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="'gmlp': expected some of gmlp_b, gmlp_s, gmlp_base"):
        list(device.bench_device(1, ["gmlp_s", "gmlp"], 1))


@pytest.mark.slow
def test_rows_of_a_peer_of_the_device_part(monkeypatch):
    """Steps of a real, tiny model of torch."""
    torch = pytest.importorskip("torch")

    def in_this_process(function, *arguments):
        return function(*arguments)

    def make(_, tokens):
        table = torch.nn.Embedding(peers.VOCABULARY, 4)
        head = torch.nn.Linear(4, peers.VOCABULARY)
        return torch.nn.Sequential(table, head)

    small = peers.PEERS["BERT-base"]._replace(make=make)
    monkeypatch.setitem(peers.PEERS, "BERT-base", small)
    monkeypatch.setattr(peers, "import_beside_torch", lambda _: torch)
    monkeypatch.setattr(torch, "compile", lambda model: model)
    monkeypatch.setattr(device, "in_own_process", in_this_process)
    peer = device.Beside("BERT-base", "a model of torch", batch=64, tokens=16)
    fastest = {"ours": 100.0}
    found_rows = device.peer_rows("ours", peer, TINY, 1, fastest)
    rows = rows_of(found_rows)
    rate = rows["a model of torch, torch.compile, batch 2: rate"]["median"]
    assert rate > 0
    median = rows["ours: rate, ours / a model of torch"]["median"]
    assert median == pytest.approx(100 / rate)
    found_rows = device.peer_rows("ours", peer, TINY, 1, {})
    without_ours = list(found_rows)
    assert len(without_ours) == len(rows) - 1


@pytest.mark.nightly
def test_the_device_part_on_a_cpu():
    """A model and every form of mixing, each in a separate process."""
    settings = device.MODELS[0].settings[1:]
    model = device.Model("tiny", "quickstart_text.py", "", settings)
    fastest = {}
    found_rows = device.model_rows(model, TINY, 1, math.inf, fastest)
    rows = rows_of(found_rows)
    options = config.from_file("configs/quickstart_text.py")
    options.batch_size = 2
    medians = {name: row["median"] for name, row in rows.items()}
    seconds = medians["tiny: step"] / 1e3
    batch_rate = medians["tiny, batch 2, remat matmuls: rate"]
    assert batch_rate == pytest.approx(2 / seconds)
    tokens = 2 * options.model.length
    token_rate = medians["tiny: rate"]
    assert token_rate == pytest.approx(tokens / seconds)
    product_rate = 1e12 * medians["one large product of 256 x 256 in float32"]
    share = medians["tiny: model FLOPs, of the product's rate"]
    flops = share * product_rate * seconds
    workload = dry_run.workload(options)
    assert flops == pytest.approx(workload.flops)
    mixing = rows_of(device.mixing_rows(32, TINY, 1))
    assert len(mixing) == 20
    for row in mixing.values():
        assert row["median"] > 0


@pytest.mark.slow
def test_forms_of_mixing_compute_the_same():
    """Beside each other they are of use only so."""
    forms = device.mixing_forms(32, 2, "float32")
    results = {}
    for name, (call, arrays) in forms.items():
        results[name] = jax.jit(call)(*arrays)
    pairs = (
        ("gate, Toeplitz direct", "gate, Toeplitz fft"),
        ("Toeplitz product direct", "Toeplitz product fft"),
        ("attention auto, positions relative", "attention xla, positions relative"),
    )
    for first, second in pairs:
        assert_allclose(results[first], results[second], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_dead_worker_is_an_error_without_a_wait():
    assert "_dies has died (exit code 3" in raised(RunError, timing.Worker, _dies)


@pytest.mark.slow
def test_a_worker_that_dies_in_a_call_is_an_error_even_if_its_child_lives():
    """The child holds the worker's end of the pipe open for two minutes."""
    with (
        timing.Worker(_aborts) as worker,
        pytest.raises(RunError, match="_aborts has died .signal SIGABRT"),
    ):
        worker.calls["abort"]()


def _dies() -> dict:
    raise SystemExit(3)


def _aborts() -> dict:
    def abort() -> None:
        if os.fork() == 0:
            time.sleep(120)
            os._exit(0)
        os.abort()

    return {"abort": abort}


@pytest.mark.slow
def test_a_part_writes_json(tmp_path):
    done = preloaded.gmlp(
        "benchmark",
        "mixers",
        "--rows=sgu",
        "--lengths=32",
        "--repeats=1",
        f"--json={tmp_path}/rows.json",
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {row["part"] for row in rows} == {"mixers"}
    assert "sgu, 32 tokens x 64: step" in done.stdout
