"""How far a command of several sweeps is: its runs, and when they end."""

from gmlp_flax.sweeps.progress import Progress, Work


class Clock:
    """A clock that stands still."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_progress_counts_the_runs_of_all_sweeps():
    clock = Clock()
    progress = Progress({"": [Work.of(3, 10), Work.of(2, 20)]}, clock)
    assert str(progress) == "0 of 5 runs"
    progress.begin_sweep(Work.of(3, 10))
    clock.seconds = 6.0
    progress.advance(27)
    # 3 steps took 6 seconds; 27 + 40 are left
    assert str(progress) == "0 of 5 runs, ETA 02:14"
    progress.advance(0)
    for _ in range(3):
        progress.end_run()
    clock.seconds = 30.0
    assert str(progress) == "3 of 5 runs, ETA 00:40"
    progress.begin_sweep(Work.of(2, 20))
    clock.seconds = 40.0
    progress.advance(30)
    assert progress.part() == Work(2, 70, 30)
    assert progress.taken == 40
    assert progress.eta() == "ETA 00:30"
    progress.advance(0)
    progress.end_run()
    progress.end_run()
    assert str(progress) == "5 of 5 runs"


def test_finished_runs_count_except_for_the_eta():
    """The command is given again: of ten steps a run, 15 were taken before."""
    clock = Clock()
    half_done = Work(2, 20, 5)
    progress = Progress({"": [half_done]}, clock)
    assert progress.runs == 2
    progress.begin_sweep(half_done)
    progress.end_run()
    clock.seconds = 10.0
    progress.advance(4)
    assert str(progress) == "1 of 2 runs, ETA 00:40"


def test_eta_covers_a_part_if_others_follow():
    clock = Clock()
    parts = {"mlm": [Work.of(1, 10)], "sst2": [Work.of(2, 1000)], "costs": []}
    progress = Progress(parts, clock)
    clock.seconds = 50.0
    progress.begin_part("mlm", [Work.of(1, 10)])
    progress.begin_sweep(Work.of(1, 10))
    clock.seconds = 60.0
    progress.advance(5)
    assert str(progress) == "0 of 3 runs, ETA of mlm 00:10"
    progress.end_run()
    progress.end_part("mlm")
    progress.begin_part("sst2", [Work.of(1, 500)])  # fewer than were planned
    assert str(progress) == "1 of 2 runs"
    progress.begin_sweep(Work.of(1, 500))
    clock.seconds = 61.0
    progress.advance(499)
    assert progress.eta() == "ETA 08:19"


def test_runs_abandoned_after_an_error_do_not_count():
    progress = Progress({"mlm": [Work.of(3, 10)], "sst2": [Work.of(2, 10)]})
    progress.begin_part("mlm", [Work.of(2, 10), Work.of(3, 10)])
    progress.begin_sweep(Work.of(2, 10))
    progress.end_run()
    assert progress.runs == 7
    progress.end_part("mlm")
    assert str(progress) == "1 of 3 runs"
    progress.skip_sweep()
    progress.end_part("sst2")
    assert str(progress) == "1 of 1 run"


def test_skipped_sweep_is_not_counted():
    sweeps = [Work.of(3, 10), Work.of(2, 10), Work.of(3, 10)]
    progress = Progress({"": sweeps})
    progress.begin_sweep(Work.of(3, 10))
    progress.skip_sweep()
    assert progress.runs == 6
    assert progress.part().left == 60
