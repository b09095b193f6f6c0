"""Plans: the estimate, what it costs, what cannot be planned, and what to try if a run does not
fit."""

import math
import types

import jax
import pytest

from gmlp_flax import config, tasks
from gmlp_flax.checkpoints.pytree import leaves_by_path
from gmlp_flax.errors import RunError
from gmlp_flax.planning import chips, dry_run, plan
from gmlp_flax.training.partition import Partition

PLUGIN = dry_run.gpu_plugin()


@pytest.fixture(autouse=True)
def no_plugin(monkeypatch):
    """Plans of GPUs are estimates, whatever is installed."""
    monkeypatch.setattr(dry_run, "gpu_plugin", lambda: None)


def small(**keys):
    """The embedded text's config, narrow."""
    options = config.from_file("configs/quickstart_text.py")
    options.model.update(layers=2, length=64, d_model=32, d_ffn=128, vocab_size=500)
    options.batch_size = 64
    options.steps = 1000
    options.update_from_flattened_dict(keys)
    return options


def fake_slice(monkeypatch, compiled):
    """Replaces a slice by four devices of this machine, and the compiler's result or error by
    `compiled`."""

    def lower(*_):
        def compile(options):
            assert options is None  # of a TPU's compiler
            if isinstance(compiled, Exception):
                raise compiled
            return compiled

        return types.SimpleNamespace(compile=compile)

    monkeypatch.setattr(
        dry_run, "devices", lambda topology: None if topology.startswith("gpu:") else []
    )
    make = Partition.make
    monkeypatch.setattr(
        Partition,
        "make",
        lambda sizes=None, devices=None: make(sizes, devices) if devices else make({}, 4),
    )
    monkeypatch.setattr(dry_run, "lower", lower)


def program(text):
    """A compiler's result: 100 bytes of arguments, 200 of temporaries, 290 at the peak."""
    sizes = types.SimpleNamespace(
        argument_size_in_bytes=100, temp_size_in_bytes=200, peak_memory_in_bytes=290
    )

    def as_text():
        if isinstance(text, Exception):
            raise text
        return text

    return types.SimpleNamespace(memory_analysis=lambda: sizes, as_text=as_text)


def test_the_estimate_of_a_gpu():
    work = dry_run.workload(small())
    found = plan.make(small(), "gpu:h100x8")
    assert found.method == "estimated"
    assert found.chips == 8
    assert found.fits
    arguments = work.state_bytes + 8 * work.batch_bytes
    temporaries = 8 * work.saved_bytes + work.param_bytes
    found_bytes = found.per_chip_bytes
    assert found_bytes["arguments"] == pytest.approx(arguments, abs=1)
    assert found_bytes["temporaries"] == pytest.approx(temporaries, abs=1)
    reduction = {"count": 1, "bytes": work.param_bytes}
    assert found.collectives == {"all-reduce": reduction}
    peak_flops = 8 * 989e12
    assert found.seconds["products"] == work.flops / peak_flops
    reduced_bytes = 2 * 7 / 8 * work.param_bytes
    link_seconds = reduced_bytes / 450e9
    assert found.seconds["links"] == pytest.approx(link_seconds)
    assert found.notes[0].startswith("an estimate")


@pytest.mark.slow
def test_programs_get_a_share_of_a_gpus_memory(monkeypatch):
    """gMLP-B without recomputation: for 256 images, XLA's program for an H100 has 37.0 GB of
    temporaries."""
    options = config.from_file("configs/imagenet.py", "gmlp_b")
    options.batch_size = 256
    options.model.remat = "none"
    found = plan.make(options, "gpu:h100x1")
    assert found.per_chip_bytes["temporaries"] == pytest.approx(37.0e9, rel=0.04)
    options.batch_size = 512
    found = plan.make(options, "gpu:h100x1")
    assert not found.fits
    assert found.hbm_bytes == 0.75 * 80e9
    assert "0.75 of a GPU's memory" in found.notes[1]
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
    assert plan.make(options, "gpu:h100x1").fits


def test_sharded_parameters_need_less_memory():
    whole = plan.make(small(**{"mesh.fsdp": 1}), "gpu:h100x8")
    sharded = plan.make(small(**{"mesh.fsdp": 8}), "gpu:h100x8")
    sharded_bytes = sharded.per_chip_bytes["arguments"]
    whole_bytes = whole.per_chip_bytes["arguments"]
    assert sharded_bytes < whole_bytes / 4


@pytest.mark.parametrize(("remat", "gathers"), [("matmuls", 1), ("full", 2)])
def test_sharded_parameters_are_gathered_again_for_recomputation(remat, gathers):
    options = small(**{"mesh.fsdp": 8, "model.remat": remat})
    found = plan.make(options, "gpu:h100x8")
    counts = {}
    for kind, collective in found.collectives.items():
        counts[kind] = collective["count"]
    assert counts == {"all-gather": gathers, "reduce-scatter": 1}


def test_parameters_that_are_not_sharded_count_fully():
    """Biases, norms and counters are on every device. Kernels are sharded over fsdp."""
    options = small(**{"mesh.fsdp": 8, "mesh.data": 1})
    partition = Partition.make(options.mesh, 8)
    share = dry_run.share_of_device(options, partition)
    task = tasks.find(options.task)(options)
    shardings = partition.for_model(task.param_metadata())
    sharded = 0
    replicated = 0
    leaves = leaves_by_path(task.shapes())
    for path, leaf in leaves.items():
        sharding = shardings.sharding(path, leaf.shape)
        if "fsdp" in sharding.spec:
            sharded += 4 * leaf.size
        else:
            replicated += 4 * leaf.size
    assert replicated > 1000
    assert share.params == sharded / 8 + replicated
    # AdamW: the parameters and two moments; the step, two counts, the window's sums
    least = 3 * share.params
    assert least < share.state < least + 200
    found = plan.make(options, "gpu:h100x8")
    batch_bytes = dry_run.workload(options).batch_bytes
    batch = 64 * batch_bytes / 8
    argument_bytes = found.per_chip_bytes["arguments"]
    assert argument_bytes == pytest.approx(share.state + batch, abs=1)


def test_several_nodes_are_limited_by_the_network():
    one_node = plan.make(small(), "gpu:h100x8")
    two_nodes = plan.make(small(), "gpu:h100x16")
    assert two_nodes.seconds["links"] > 1.5 * one_node.seconds["links"]


def test_the_smallest_batch_that_is_limited_by_products():
    """Milliseconds of a batch of 64: products 4, memory 5 of which 3 for the state, links 2."""
    assert plan.compute_bound(64, 4.0, 3.0, 5.0, 2.0) == 96  # 1.5 x (4, 5 - 3) = 6, 3 + 3 = 6
    assert plan.compute_bound(64, 4.0, 0.5, 1.0, 6.0) == 96  # links: 1.5 x 4 = 6
    assert plan.compute_bound(64, 4.0, 1.0, 5.5, 2.0) is None


def test_utilization_and_cost():
    found = plan.make(small(), "gpu:h100x4", price=2.0, mfu=0.5)
    peak_flops = 4 * 989e12 * found.step_seconds
    utilization = found.flops_per_step / peak_flops
    assert found.utilization == pytest.approx(utilization)
    tokens_per_hour = 64 * 64 / found.step_seconds * 3600
    price_per_hour = 2.0 * 4
    tokens_per_price = tokens_per_hour / price_per_hour
    assert found.per_price == pytest.approx(tokens_per_price)
    assert plan.make(small(), "gpu:a100x4").per_price is None


@pytest.mark.skipif(PLUGIN is None, reason="JAX's CUDA plugin is not installed (extra: plan-gpu)")
@pytest.mark.parametrize("kind", [kind for kind, chip in chips.CHIPS.items() if chip.processors])
def test_programs_for_gpus_are_compiled_without_a_gpu(kind, monkeypatch):
    """All gradients are summed over the GPUs of two nodes."""
    monkeypatch.setattr(dry_run, "gpu_plugin", lambda: PLUGIN)
    found = plan.make(small(), f"{kind}x16")
    assert found.method == "compiled"
    assert found.seconds["memory"]
    assert found.fits
    reduced = found.collectives["all-reduce"]
    parameter_bytes = 4 * found.params
    assert reduced["bytes"] == pytest.approx(parameter_bytes, rel=0.01)


def test_the_time_and_cost_of_a_run():
    found = plan.make(small(), "gpu:a100x4", price=3.0)
    run_seconds = 1000 * found.step_seconds
    chip_days = 4 * found.run_days
    days = run_seconds / 86400
    assert found.run_days == pytest.approx(days)
    chip_hours = 24 * chip_days
    assert found.chip_hours == pytest.approx(chip_hours)
    cost = 3 * found.chip_hours
    assert found.cost == pytest.approx(cost)
    without_price = plan.make(small(), "gpu:a100x4")
    assert without_price.cost is None


def test_a_measured_utilization_replaces_the_peak():
    peak = plan.make(small(), "gpu:h100x1", mfu=None)
    half = plan.make(small(), "gpu:h100x1", mfu=0.5)
    assert half.seconds["products"] == 2 * peak.seconds["products"]


def test_a_program_that_exceeds_the_memory_does_not_fit(monkeypatch):
    message = (
        "RESOURCE_EXHAUSTED: needed for HLO temporaries (20.00G) exceeds available HBM (15.75G)."
    )
    fake_slice(monkeypatch, jax.errors.JaxRuntimeError(message))
    found = plan.make(small(), "v5e:2x2")
    assert not found.fits
    assert found.per_chip_bytes["peak"] == 20 * 2**30
    total = found.per_chip_bytes["arguments"] + found.per_chip_bytes["temporaries"]
    assert total == pytest.approx(20 * 2**30, abs=2)
    assert found.step_seconds > 0
    assert "exceeds the memory" in found.notes[0]


def test_other_errors_of_the_compiler_are_raised(monkeypatch):
    fake_slice(monkeypatch, jax.errors.JaxRuntimeError("INTERNAL: a bug"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="a bug"):
        plan.make(small(), "v5e:2x2")


def test_compiled_programs_are_analysed(monkeypatch):
    """Memory traffic: 4 KB read and 4 KB written. The program waits for the reduction."""
    text = """
ENTRY %main (p: f32[1024]) -> f32[1024] {
  %p = f32[1024]{0} parameter(0)
  ROOT %all-reduce.1 = f32[1024]{0} all-reduce(%p), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
}
"""
    fake_slice(monkeypatch, program(text))
    found = plan.make(small(), "v5e:2x2")
    chip = chips.CHIPS["v5e"]
    assert found.method == "compiled"
    assert found.fits
    assert found.notes == ("the chips' peak is that of bfloat16, the config's type is float32",)
    assert found.per_chip_bytes == {"arguments": 100, "temporaries": 200, "peak": 290}
    assert found.collectives == {"all-reduce": {"count": 1, "bytes": 4096}}
    assert found.seconds["memory"] == 2 * 4096 / chip.hbm_bandwidth
    assert found.seconds["links"] == 1.5 * 4096 / chip.link
    overlapped = max(found.seconds["products"], found.seconds["memory"])
    assert math.isclose(found.step_seconds, overlapped + found.seconds["links"])


def test_programs_that_cannot_be_printed_still_have_their_memory(monkeypatch):
    fake_slice(monkeypatch, program(jax.errors.JaxRuntimeError("INTERNAL: RET_CHECK failure")))
    found = plan.make(small(), "v5p:2x2x1")
    assert found.fits
    assert found.per_chip_bytes["peak"] == 290
    assert found.collectives["all-reduce"]["count"] == 1
    assert "cannot print" in found.notes[0]


def test_two_devices_of_a_chip_share_its_memory(monkeypatch):
    """libtpu lists each core of v2, v3 and tpu7x as a device. A chip has the data of both."""
    text = "ENTRY %main (p: f32[]) -> f32[] {\n  ROOT %p = f32[] parameter(0)\n}\n"
    fake_slice(monkeypatch, program(text))
    found = plan.make(small(), "v3:2x1")
    assert found.chips == 2
    assert found.per_chip_bytes["peak"] == 2 * 290


@pytest.mark.parametrize(
    ("keys", "topology", "message"),
    [
        (
            {"batch_size": 12},
            "gpu:h100x8",
            "config.batch_size is 12, which 8 devices cannot share evenly",
        ),
        ({"optimizer.grad_accum_steps": 16}, "gpu:h100x8", "8 devices x 16 microbatches"),
        ({"mesh.fsdp": 3}, "gpu:h100x8", "config.mesh"),
    ],
)
def test_unshardable_models_are_refused_before_anything_is_counted(
    monkeypatch, keys, topology, message
):
    monkeypatch.setattr(dry_run, "workload", lambda _: pytest.fail("counted"))
    with pytest.raises(RunError, match=message):
        plan.make(small(**keys), topology)


def test_alternatives_suit_the_batch():
    alternatives = plan.alternatives(small(), "v5e:4x4")
    names = [name for name, *_ in alternatives]
    assert names == ["remat=full", "grad_accum_steps=2", "grad_accum_steps=4", "v5e:4x8", "v5e:8x8"]
    full = small(
        **{"batch_size": 64, "model.remat": "full", "mesh.fsdp": 4, "optimizer.grad_accum_steps": 4}
    )
    assert list(plan.alternatives(full, "v5e:4x4")) == []
    larger = ["grad_accum_steps=8", "gpu:h100x8", "gpu:h100x16"]
    alternatives = plan.alternatives(full, "gpu:h100x4")
    got = [name for name, *_ in alternatives]
    assert got == larger
