import json

import pytest

from gmlp_flax.checkpoints.metrics_file import MetricsFile, newest_baselines, read_result
from gmlp_flax.errors import RunError
from tests.failures import raised


@pytest.fixture
def path(tmp_path):
    """Lines of steps 2 to 8, with evaluations at 4 and 8."""
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": 2, "loss": 3.0}, {"step": 4, "loss": 2.0}, {"step": 4, "eval": {"loss": 2.5}}]
    lines += [
        {"step": 6, "loss": 1.5},
        {"step": 8, "loss": 1.2},
        {"step": 8, "eval": {"loss": 2.1}},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("step", "kept"), [(0, []), (3, [2]), (4, [2, 4, 4]), (5, [2, 4, 4]), (8, [2, 4, 4, 6, 8, 8])]
)
def test_lines_after_the_checkpoint_are_dropped(path, step, kept):
    before = path.read_bytes()
    file = MetricsFile(str(path), step)
    assert path.read_bytes() == before  # nothing is dropped before a step is taken
    file.begin()
    got = [line["step"] for line in MetricsFile.read(str(path))]
    assert got == kept
    expected = [each for each in (4, 8) if each <= step]
    assert sorted(file.evaluations) == expected
    file.write({"step": 9, "loss": 1.0})
    got = [line["step"] for line in MetricsFile.read(str(path))]
    assert got == [*kept, 9]
    file.close()


@pytest.mark.parametrize("half", ['{"step": 8, "lo', '{"step": 8, "loss": 2.125}'])
def test_half_a_line_is_dropped(path, half):
    """A number that is cut off is still a number. Only the missing end of the line shows it."""
    with path.open("a") as file:
        file.write(half)
    file = MetricsFile(str(path), 100)
    file.begin()
    file.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [
        2,
        4,
        4,
        6,
        8,
        8,
    ]
    assert path.read_text().endswith("\n")


@pytest.mark.parametrize(
    "line",
    [
        "\xff",
        "[4]",
        "[" * 100_000,
        '{"loss": 1.0}',
        '{"step": true}',
        '{"step": -1}',
        '{"step": 1' + "0" * 6000 + "}",
        '{"step": 4, "eval": 3}',
        '{"step": 4, "eval": {"loss": 1' + "0" * 400 + "}}",
        '{"step": 4, "loss": [1]}',
        '{"step": 4, "changed": {"seed": 3}}',
        '{"step": 4, "baselines": [3]}',
        '{"step": 4, "baselines": {"name": ""}}',
        '{"step": 4, "baselines": [{"name": [], "eval": {"loss": 1}}]}',
    ],
)
def test_damaged_line_is_named_and_nothing_is_lost(path, line):
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:2], line.encode("latin-1") + b"\n", *lines[2:]])
    path.write_bytes(damaged)
    with pytest.raises(RunError, match=f"^{path}, line 3 is damaged: b'.*'"):
        MetricsFile(str(path), 100)
    assert path.read_bytes() == damaged


def test_no_file_yet(tmp_path):
    assert MetricsFile.read(str(tmp_path / "none")) == []
    file = MetricsFile(str(tmp_path / "new"), 0)
    file.write({"step": 1, "eval": {"loss": 1.0}})
    assert file.evaluations == {1: {"loss": 1.0}}
    # before the file is closed
    assert (tmp_path / "new").read_text() == '{"step": 1, "eval": {"loss": 1.0}}\n'
    file.close()


def change(step: int, **values: list) -> dict:
    return {"step": step, "changed": values}


def test_changes_after_the_checkpoint_are_dropped(path):
    """A change at step 4 is about the steps after it. Of two changes of one key the older value
    counts."""
    lines = [
        change(2, a=[1, 2]),
        {"step": 4, "loss": 2.0},
        change(4, a=[2, 3], b=[0, 1]),
        change(6, a=[3, 4]),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert MetricsFile(str(path), 8).dropped_changes == {}
    assert MetricsFile(str(path), 6).dropped_changes == {"a": 3}
    assert (
        MetricsFile(str(path), 4).dropped_changes
        == MetricsFile(str(path), 3).dropped_changes
        == {"a": 2, "b": 0}
    )
    file = MetricsFile(str(path), 4)
    file.begin()
    file.close()
    assert MetricsFile.read(str(path)) == lines[:2]


def test_an_evaluation_before_the_first_step_loses_no_change(path):
    """Killed after it, the next start still knows what was changed for steps that are taken
    again."""
    lines = [
        {"step": 4, "loss": 2.0},
        change(4, a=[2, 3]),
        {"step": 6, "loss": 1.5},
        change(6, a=[3, 4]),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    file = MetricsFile(str(path), 4)
    evaluation = {"step": 4, "eval": {"loss": 2.5}}
    file.write(evaluation)
    file.write(evaluation)  # one host did not see it, and all evaluate again
    expected = [lines[0], lines[1], lines[3], evaluation]
    assert MetricsFile.read(str(path)) == expected
    assert MetricsFile(str(path), 4).dropped_changes == file.dropped_changes == {"a": 2}
    file.begin()
    file.write({"step": 5, "loss": 1.0})
    file.close()
    assert MetricsFile.read(str(path)) == [lines[0], evaluation, {"step": 5, "loss": 1.0}]


def test_what_version_0_2_wrote_is_refused(tmp_path):
    """Its runs had one baseline."""
    baseline = {"name": "token frequencies alone", "eval": {"loss": 2.0}}
    line = {"step": 4, "eval": {"loss": 1.0}, "baseline": baseline}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    message = raised(RunError, MetricsFile, str(tmp_path / "metrics.jsonl"), 4)
    assert message.startswith(f"{tmp_path}/metrics.jsonl, line 1 ")
    assert "0.2.0" in message
    (tmp_path / "result.json").write_text(json.dumps(line))
    message = raised(RunError, read_result, str(tmp_path))
    assert message.startswith(f"{tmp_path}/result.json ")
    assert "0.2.0" in message


def test_the_newest_baselines_count():
    first, second = ([{"name": name, "eval": {"loss": 2.0}}] for name in "ab")
    lines = [{"step": 1, "baselines": first}, {"step": 2, "baselines": second}, {"step": 3}]
    assert newest_baselines(lines) == second
    assert newest_baselines(lines[:1]) == first
    assert newest_baselines([]) == []


def test_result_of_others(tmp_path):
    assert read_result(str(tmp_path)) is None
    good = {"step": 3, "eval": {"loss": 1.0}, "waiting": {"data": 0.1}}
    (tmp_path / "result.json").write_text(json.dumps(good))
    assert read_result(str(tmp_path)) == good
    for bad in (
        "",
        "[]",
        '{"step": 3}',
        '{"step": [], "eval": {}}',
        '{"step": 3, "eval": {"a": []}}',
    ):
        (tmp_path / "result.json").write_text(bad)
        assert raised(RunError, read_result, str(tmp_path)).startswith(
            f"{tmp_path}/result.json is damaged"
        )
