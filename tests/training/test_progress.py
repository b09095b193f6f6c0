import pytest

from gmlp_flax.training import progress
from gmlp_flax.training.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """The time that `Progress` reads. Tests set it."""
    now = {"seconds": 100.0}
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now["seconds"])
    return now


def test_rate_leaves_the_first_step_out(clock):
    line = Progress(first=10, steps=100, per_step=32, unit="tokens")
    assert line.rate(10) == 0
    clock["seconds"] = 200.0  # the first step compiles
    line.advance(11)
    assert line.rate(11) == 0
    clock["seconds"] = 202.0
    line.advance(12)
    assert line.rate(12) == 16
    clock["seconds"] = 204.0
    line.advance(15)
    assert line.rate(15) == 32


def test_plain_lines_without_a_terminal(clock, capsys):
    line = Progress(first=0, steps=5000, per_step=10, unit="images")
    line.advance(1)
    clock["seconds"] = 110.0
    line.show_loss(11, 1.23456)
    line.show("step 11  held out: top1 0.5")
    line.close()
    assert capsys.readouterr().err.splitlines() == [
        "step 11/5000  loss 1.2346  10 images/s  ETA 1:23:09",
        "step 11  held out: top1 0.5",
    ]
