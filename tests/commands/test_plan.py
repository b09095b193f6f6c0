"""The planner's command: its output, its errors, and golden plans.

`python tests/commands/test_plan.py` rewrites plan_golden.json (ten programs, about four minutes on
two cores); with JAX's CUDA plugin, plan_gpu_golden.json.
"""

import importlib.util
import json
import pathlib
import subprocess

import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.models import parameters
from gmlp_flax.planning import dry_run
from tests import preloaded

GOLDEN = pathlib.Path(__file__).parent / "plan_golden.json"
FIELDS = ("params", "flops_per_step", "per_chip_bytes", "hbm_bytes", "fits", "collectives")
KEYS = {
    *FIELDS,
    "utilization",
    "per_price",
    "products_bound",
    "topology",
    "chips",
    "step_seconds",
    "run_days",
    "chip_hours",
    "cost",
    "method",
    "notes",
    "seconds",
    "moved",
}

# Every model of the paper on a suitable slice; all except the largest are replicated on every chip.
PLANS = {
    "gmlp_ti": ("imagenet", "v5e:4x4"),
    "gmlp_s": ("imagenet", "v5e:4x4"),
    "gmlp_b": ("imagenet", "v5e:4x8"),
    "bert_base": ("c4_bert", "v5e:8x8"),
    "bert_large": ("c4_bert", "v5e:8x8"),
    "gmlp_base": ("c4_bert", "v5e:8x8"),
    "gmlp_large": ("c4_bert", "v5e:8x8"),
    "gmlp_xlarge": ("c4_bert", "v5e:8x8", "--config.mesh.fsdp=64"),
    "amlp_base": ("c4_bert", "v5e:8x8"),
    "amlp_large": ("c4_bert", "v5e:8x8"),
}

GPU_GOLDEN = GOLDEN.with_name("plan_gpu_golden.json")


def gpu_plans() -> dict[str, tuple[str, str]]:
    """Models on one H100 and on eight: name -> config and topology."""
    models = (
        ("imagenet", "gmlp_s"),
        ("imagenet", "gmlp_b"),
        ("c4_bert", "gmlp_base"),
        ("c4_bert", "bert_base"),
    )
    plans = {}
    for file, model in models:
        for topology in ("gpu:h100x1", "gpu:h100x8"):
            plans[f"{model} on {topology}"] = (f"{file}:{model}", topology)
    return plans


GPU_PLANS = gpu_plans()
needs_plugin = pytest.mark.skipif(
    dry_run.gpu_plugin() is None, reason="JAX's CUDA plugin is missing (extra: plan-gpu)"
)
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)


def command(*arguments: str) -> subprocess.CompletedProcess:
    """Runs the planner."""
    return preloaded.gmlp("plan", *arguments, XLA_FLAGS="")  # libtpu refuses the CPU's flags


def test_inherited_model_is_planned(text_run):
    """It is estimated for finetuning. The model of the config itself is larger."""
    files = ("--config=configs/finetune_glue.py:sst2", "--topology=gpu:l4x1", "--json")
    done = command(*files, f"--config.init_from={text_run}", "--config.model.length=16")
    assert done.returncode == 0, done.stderr
    old = gmlp_config.load(str(text_run / "config.json"))
    start = gmlp_config.Start("pretrained", old, {})
    config = gmlp_config.from_file("configs/finetune_glue.py", "sst2")
    config.model.length = 16
    resolution = gmlp_config.resolve(config, lambda _: start)
    resolved = resolution.config
    task = tasks.find(resolved.task)(resolved)
    shapes = task.shapes()
    planned_params = json.loads(done.stdout)["params"]
    assert planned_params == parameters.count(shapes)


def planned(name: str) -> dict:
    """The plan of a model of the paper."""
    file, topology, *more = PLANS[name]
    flags = (f"--config=configs/{file}.py:{name}", f"--topology={topology}", *more)
    done = command(*flags, "--json")
    errors = done.stderr[-2000:]
    assert done.returncode == 0, errors
    return json.loads(done.stdout)


def gpu_plan(name: str) -> dict:
    """One of GPU_PLANS."""
    config, topology = GPU_PLANS[name]
    done = command(f"--config={config}", f"--topology={topology}", "--json")
    errors = done.stderr[-2000:]
    assert done.returncode == 0, errors
    return json.loads(done.stdout)


def golden() -> dict[str, dict]:
    """The golden plans by name."""
    return json.loads(GOLDEN.read_text())


# A program takes up to a minute. For each change, tests/planning/test_dry_run.py compiles two.
@needs_libtpu
@pytest.mark.nightly
@pytest.mark.parametrize("name", PLANS)
def test_plans_agree_with_the_golden_file(name):
    """Memory agrees within 3 %, and collectives in kind and number."""
    found = planned(name)
    known = golden()[name]
    assert found.keys() == KEYS
    for field in ("params", "flops_per_step", "hbm_bytes", "fits"):
        assert found[field] == known[field], field
    for part, size in known["per_chip_bytes"].items():
        part_bytes = found["per_chip_bytes"][part]
        assert part_bytes == pytest.approx(size, rel=0.03), part
    kinds = known["collectives"].keys()
    assert found["collectives"].keys() == kinds
    for kind, collective in known["collectives"].items():
        found_collective = found["collectives"][kind]
        assert found_collective["count"] == collective["count"], kind
    flops_per_chip = found["flops_per_step"] / found["chips"]
    assert found["step_seconds"] > flops_per_chip / 1e15


def exchanged(plan: dict) -> int:
    """The bytes of all collectives of a plan."""
    sizes = [kind["bytes"] for kind in plan["collectives"].values()]
    return sum(sizes)


@needs_plugin
@pytest.mark.nightly
@pytest.mark.parametrize("name", GPU_PLANS)
def test_plans_of_gpus_agree_with_the_golden_file(name):
    """Memory and traffic agree within 5 %, as versions of XLA differ; bytes of collectives within
    1 %."""
    found = gpu_plan(name)
    known = json.loads(GPU_GOLDEN.read_text())[name]
    assert found["method"] == "compiled"
    assert found["fits"] == known["fits"]
    peak = known["per_chip_bytes"]["peak"]
    found_peak = found["per_chip_bytes"]["peak"]
    assert found_peak == pytest.approx(peak, rel=0.05)
    memory_seconds = known["seconds"]["memory"]
    assert found["seconds"]["memory"] == pytest.approx(memory_seconds, rel=0.05)
    exchanged_bytes = exchanged(known)
    assert exchanged(found) == pytest.approx(exchanged_bytes, rel=0.01)


@needs_libtpu
@pytest.mark.nightly
def test_fused_attention_keeps_logits_out_of_memory():
    """The kernel takes 19.6 ms, and XLA's own program 58 ms."""
    done = command("--config=c4_bert:bert_base_rel", "--topology=v5e:4x4", "--json")
    assert json.loads(done.stdout)["seconds"]["memory"] < 0.02, done.stderr


def test_each_model_of_the_paper_is_known_and_fits():
    known = golden()
    assert known.keys() == PLANS.keys()
    for row in known.values():
        assert row["fits"]
        assert row["per_chip_bytes"]["peak"] <= row["hbm_bytes"]
    assert known["gmlp_xlarge"]["params"] == 940_614_768


TINY = (
    "--config.model.layers=2",
    "--config.model.d_model=64",
    "--config.model.d_ffn=128",
    "--config.model.length=128",
)


@pytest.mark.slow
@needs_libtpu
def test_too_small_slice_is_reported():
    done = command(
        "--config=configs/c4_bert.py:gmlp_base",
        "--topology=v5e:2x2",
        "--config.batch_size=8192",
        *TINY,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "DOES NOT FIT" in done.stdout
    assert "exceeds the memory" in done.stdout
    assert "--config.mesh=auto" in done.stdout.splitlines()[-1]
    assert not preloaded.without_heartbeats(done.stderr)


@pytest.mark.slow
@needs_libtpu
def test_collectives_of_a_compiled_program():
    """A layer's reductions run in the loop over layers, or all at the end. Either way they have every
    parameter."""
    done = command(
        "--config=configs/c4_bert.py:gmlp_base",
        "--topology=v5e:2x2",
        "--config.batch_size=8",
        *TINY,
        "--config.model.vocab_size=500",
        "--json",
        "--moved=3",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    reduced = found["collectives"]["all-reduce"]["bytes"]
    # 2 or 4 bytes each; for the tied table, those of its two uses.
    assert found["fits"]
    assert 2 * found["params"] <= reduced <= 6.1 * found["params"]
    assert not preloaded.without_heartbeats(done.stderr)
    assert not found["notes"]
    sizes = [buffer["bytes"] for buffer in found["moved"]]
    assert len(sizes) == 3
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) < found["seconds"]["memory"] * 819e9


@pytest.mark.slow
def test_gpus_are_estimated():
    flags = (
        "--config=configs/imagenet.py:gmlp_s",
        "--topology=gpu:h100x8",
        "--price=2.5",
        "--mfu=0.5",
    )
    done = command(*flags, "--moved=3")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[0] == "gpu:h100x8: 8 chips, estimated"
    assert "note: an estimate" in done.stdout
    assert "--moved" in done.stdout
    assert "at the price given" in done.stdout
    found = json.loads(command(*flags, "--json").stdout)
    assert found.keys() == KEYS
    assert found["cost"] == pytest.approx(2.5 * found["chip_hours"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology=v5e:4x4"], "--config is missing: see gmlp plan --help"),
        (["--config=configs/c4_bert.py", "--topology=gpu:h100x8", "--mfu=40"], "--mfu=40"),
        (["--config=configs/c4_bert.py", "--topology=gpu:h100x8", "--price=-1"], "--price=-1"),
        (
            ["--config=configs/c4_bert.py", "--topology=v4:2x2"],
            "'v4:2x2' is no slice of v4, which are written as v4:2x2x1",
        ),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    assert message in preloaded.refused("plan", *arguments)


def write_gpu_plans() -> None:
    """Rewrites plan_gpu_golden.json."""
    fields = (
        "per_chip_bytes",
        "hbm_bytes",
        "fits",
        "collectives",
        "seconds",
        "utilization",
        "products_bound",
    )
    rows = {}
    for name in GPU_PLANS:
        plan = gpu_plan(name)
        rows[name] = {field: plan[field] for field in fields}
        print(name, rows[name], flush=True)
    GPU_GOLDEN.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    if dry_run.gpu_plugin():
        write_gpu_plans()
        raise SystemExit
    rows = {}
    for model in PLANS:
        plan = planned(model)
        rows[model] = {field: plan[field] for field in FIELDS}
        size = rows[model]["per_chip_bytes"]
        milliseconds = 1e3 * plan["step_seconds"]
        print(model, size, f"{milliseconds:.4g} ms", flush=True)
    GOLDEN.write_text(json.dumps(rows, indent=1) + "\n")
