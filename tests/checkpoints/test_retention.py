import json
from types import SimpleNamespace

import pytest

from gmlp_flax.checkpoints.retention import About, Retention


def kept(known: dict, steps=None, unverified=None, **options) -> list[int]:
    retention = Retention(**{"keep": 1, "keep_best": 1, "best": ("loss", "min"), **options})
    retention.known, retention.unverified = known, unverified or {}
    found = [SimpleNamespace(step=step) for step in steps or known]
    stays = retention.should_preserve(found, context=None)
    return [each.step for each, stay in zip(found, stays, strict=True) if stay]


def test_newest_and_best_stay():
    known = {1: {"loss": 0.5}, 2: {"loss": 0.1}, 3: None, 4: {"loss": float("nan")}, 5: {"loss": 0.3}, 6: None}
    assert kept(known) == [2, 6]
    assert kept(known, keep=2, keep_best=2) == [2, 5, 6]
    assert kept(known, keep_best=0) == [6]
    assert kept(known, best=("loss", "max")) == [1, 6]


@pytest.mark.parametrize("keep, best", [(1, 0), (1, 3), (2, 5), (3, 2)])
def test_the_best_stay_while_a_run_improves(keep, best):
    """One checkpoint after another, each better than those before: also while there are fewer than `best`."""
    steps = []
    for step in range(1, 11):
        steps = kept({each: {"loss": 1 / each} for each in [*steps, step]}, keep=keep, keep_best=best)
        assert steps == list(range(max(1, step + 1 - max(keep, best)), step + 1))


def test_what_is_not_known_stays():
    assert kept({2: {"loss": 0.1}, 4: {"loss": 0.2}}, [1, 2, 3, 4]) == [1, 2, 3, 4]
    assert kept({1: {"top1": 0.1}, 2: {"loss": 0.1}, 3: {"loss": 0.2}, 4: {"loss": 0.3}}) == [1, 2, 4]


def test_the_best_of_those_that_are_not_verified_stay_too():
    """They do not fill the disk, and never take the place of one that is verified."""
    later = {step: {"loss": 0.1 * step} for step in (3, 4, 5)}
    known = {1: {"loss": 0.5}, 2: {"loss": 0.6}, 6: {"loss": 0.7}}
    assert kept(known, range(1, 7), later) == [1, 3, 6]
    assert kept(known, range(1, 7), later, keep_best=2) == [1, 2, 3, 4, 6]
    assert kept(known, range(1, 7), later, keep_best=0) == [6]


def test_about_survives_json():
    about = About("id", 3, {"loss": 0.1 + 2**-50}, ["a.txt"], "digest")
    assert About.of(json.dumps(about._asdict()).encode()) == about


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"run": 1, "step": 2, "metrics": {}, "files": [], "leaves": ""}',
        b'{"run": "", "step": 2, "metrics": [1], "files": [], "leaves": ""}',
        b'{"run": "", "step": 2, "metrics": {"loss": "x"}, "files": [], "leaves": ""}',
        b'{"run": "", "step": 2, "metrics": {}, "files": [1], "leaves": ""}',
        b'{"run": "", "step": 2, "metrics": {}, "files": 3, "leaves": ""}',
        b'{"run": "", "step": 2, "metrics": {}, "files": [], "leaves": {}}',
    ],
)
def test_about_that_makes_no_sense(content):
    with pytest.raises((TypeError, ValueError)):
        About.of(content)
