"""The benchmark's arithmetic and its quick parts; how fast the machine is stays untested."""

import io
import json
import os
import tarfile
import time

import numpy as np
import pytest
from PIL import Image

from gmlp_flax import config
from gmlp_flax.benchmarks import device, images, timing
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.planning import workload
from gmlp_flax.training import step
from tests import preloaded


def test_candidates_run_in_turn_each_warmed_up():
    order = []
    seconds = timing.measure({name: lambda name=name: order.append(name) for name in "ab"}, repeats=2)
    assert order == ["a", "a", "b", "b", "a", "a", "b", "b"]
    assert {name: len(values) for name, values in seconds.items()} == {"a": 2, "b": 2}
    row = timing.row("x", [3.0, 1.0, 2.0], "s", "< 4")
    assert (row["median"], row["min"], row["max"], row["goal"]) == (2.0, 1.0, 3.0, "< 4")
    assert timing.ratios([4.0, 9.0], [2.0, 3.0]) == [2.0, 3.0]


def test_unknown_part_is_one_line():
    done = preloaded.gmlp("benchmark", "steps")
    assert done.returncode == 2 and "'steps'; did you mean 'step'?" in done.stderr.splitlines()[-1]


def test_jpegs_of_a_tar_and_of_a_folder(tmp_path):
    with tarfile.open(tmp_path / "flat.tar", "w") as tar:
        for name, data in {"b.JPEG": b"2", "a.jpg": b"1", "list.txt": b"no", "c/d.jpeg": b"3"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    assert images.jpegs(str(tmp_path / "flat.tar")) == [b"1", b"2", b"3"]
    with tarfile.open(tmp_path / "flat.tar") as tar:
        tar.extractall(tmp_path / "folder", filter="data")
    assert images.jpegs(str(tmp_path / "folder")) == [b"1", b"2", b"3"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="jpeg file in '.*empty'"):
        images.jpegs(str(tmp_path / "empty"))


def test_both_sides_of_the_images_part_make_the_same_images():
    """Else their speeds could not be compared: the same crops, flips and operations, a few grey levels apart."""
    [data] = images.made_up(1)
    assert 50_000 < len(data) < 150_000
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (500, 375)
    for stage, calls in images.STAGES.items():
        for seed in range(6):
            plain, ours = (np.asarray(call(data, np.random.default_rng(seed))).astype(int) for call in calls)
            assert plain.shape == ours.shape, stage
            assert np.median(abs(plain - ours)) <= (0 if stage == "decode" else 12), (stage, seed)


def tiny_text():
    options = config.from_file("configs/quickstart_text.py")
    options.model.update(layers=1, length=16, d_model=8, d_ffn=16, vocab_size=300)
    options.batch_size = 8
    return options


def test_steps_are_compiled_once(monkeypatch):
    """Else the first one that is timed would be a compilation."""
    made, make = [], step.Training
    monkeypatch.setattr(step, "Training", lambda *given: made.append(make(*given)) or made[-1])
    call = timing.step_call(tiny_text(), steps=2)
    for _ in range(3):
        call()
    assert made[0].step._cache_size() == 1


class OutOfMemory(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({2: 10, 4: 20, 8: 20.1, 16: 99}, 4),  # hardly faster: not worth the memory
        ({2: 10, 4: 5, 8: 30, 16: 40}, 2),
        ({2: 10, 4: 20}, 4),  # larger ones do not fit
    ],
)
def test_fastest_batch(monkeypatch, rates, best):
    clock = [0.0]
    monkeypatch.setattr(device.time, "perf_counter", lambda: clock[0])

    def make(batch):
        if batch not in rates:
            raise OutOfMemory("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes.")
        return lambda: clock.__setitem__(0, clock[0] + batch / rates[batch])

    assert device.fastest(make, (2, 4, 8, 16)) == (best, pytest.approx(rates[best]))


def test_search_for_a_batch_hides_no_mistake():
    def mistaken(batch):
        raise OutOfMemory("RESOURCE_EXHAUSTED" if batch == 2 else "a shape is wrong")

    with pytest.raises(OutOfMemory, match="RESOURCE_EXHAUSTED"):  # not even the smallest batch fits
        device.fastest(mistaken, (2, 4))
    with pytest.raises(OutOfMemory, match="a shape is wrong"):
        device.fastest(mistaken, (4, 8))


def test_models_of_the_device_part(monkeypatch):
    seen = []
    monkeypatch.setattr(device, "rows_of", lambda name, options, *_: seen.append((name, options.model.block)) or [])
    device.bench_device(1, ["gmlp_b"])
    assert seen == [("gMLP-B", "gmlp")]
    with pytest.raises(ConfigError, match="'gmlp': expected some of gmlp_s, gmlp_b, gmlp_base"):
        device.bench_device(1, ["gmlp_s", "gmlp"])


@pytest.mark.slow
def test_device_part_on_a_cpu():
    """The search, the measurements and their rows, each program in a process of its own."""
    tiny = device.Device("float32", 256, (8,), 2)
    rows = {row["name"]: row for row in device.rows_of("tiny", tiny_text(), "", ">= 0.5", tiny, 1)}
    assert len(rows) == 5
    [rate] = [row for name, row in rows.items() if name.startswith("tiny, batch ") and name.endswith(": rate")]
    [step_ms] = [row for name, row in rows.items() if name.endswith(": step")]
    options = tiny_text()
    options.batch_size = int(rate["name"].split()[2].rstrip(","))
    assert options.batch_size in tiny.batches
    seconds = step_ms["median"] / 1e3
    assert (rate["median"], rate["unit"]) == (pytest.approx(options.batch_size * 16 / seconds), "tokens/s")
    product, share = rows["one large float32 product"], rows["tiny: model FLOPs, of the product's rate"]
    assert share["median"] * product["median"] * 1e12 * seconds == pytest.approx(workload.of(options).flops)
    assert share["goal"] == ">= 0.5"
    assert 0 < rows["tiny: memory at its peak"]["median"] < 0.1


def test_a_worker_that_dies_is_an_error_and_no_wait():
    with pytest.raises(RunError, match="_dies has died .exit code 3"):
        timing.Worker(_dies)


def test_a_worker_that_dies_in_a_call_and_leaves_a_child():
    """The child holds the worker's end of the pipe open for two minutes."""
    with timing.Worker(_aborts) as worker, pytest.raises(RunError, match="_aborts has died .signal SIGABRT"):
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


def test_a_part_writes_json(tmp_path):
    done = preloaded.gmlp(
        "benchmark", "mixers", "--rows=sgu", "--lengths=32", "--repeats=1", f"--json={tmp_path}/rows.json"
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {row["part"] for row in rows} == {"mixers"} and "sgu, 32 tokens x 64: step" in done.stdout
