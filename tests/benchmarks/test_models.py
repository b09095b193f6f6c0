"""The part `step`: shares of the speed of a large product. The speed itself is not tested."""

import pytest

from gmlp_flax import config
from gmlp_flax.benchmarks import models, peers
from gmlp_flax.paper import published


class WorkerHere:
    """Calls in this process, in place of timing.Worker's separate one."""

    def __init__(self, make):
        self.calls = make()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def tiny_images(_):
    options = config.from_file("configs/quickstart_image.py")
    options.model.update(layers=1, d_model=8, d_ffn=16)
    return options


@pytest.mark.slow
def test_shares_of_the_step_part_are_rates_over_rates_of_products(monkeypatch):
    """Real calls of a tiny model and of tiny products; their times are set."""
    seconds = {"product 16": 2.0, "product 32": 4.0, "forward": 0.5, "step": 8.0}

    def measure(calls, repeats):
        for call in calls.values():
            call()
        return {name: [seconds[name]] * repeats for name in calls}

    tiny = peers.PEERS["gMLP-S"]._replace(ours=tiny_images)
    monkeypatch.setitem(peers.PEERS, "gMLP-S", tiny)
    monkeypatch.setattr(models, "MATRICES", (16, 32))
    monkeypatch.setattr(models, "Worker", WorkerHere)
    monkeypatch.setattr(models, "measure", measure)
    rows = {row["name"]: row for row in models.bench_step(2)}
    assert len(rows) == 2 + 2 + 4
    gigaflops = rows["one f32 product of 32 x 32"]["median"]
    assert gigaflops == pytest.approx(2 * 32**3 / 4.0 / 1e9)
    assert rows["gMLP-S forward"]["median"] == models.BATCH / 0.5
    flops = models.BATCH * published.forward_flops(published.PUBLISHED["gmlp_s"])
    share = rows["gMLP-S forward: share of the 16 x 16 product's rate"]
    assert share["median"] == pytest.approx((flops / 0.5) / (2 * 16**3 / 2.0))
    share = rows["gMLP-S step: share of the 32 x 32 product's rate"]
    assert share["median"] == pytest.approx((3 * flops / 8.0) / (2 * 32**3 / 4.0))
    assert share["goal"] == ">= 0.75"
