import json

import pytest

from gmlp_flax.checkpoints.metrics_file import MetricsFile, newest_baselines, read_result
from gmlp_flax.errors import RunError
from tests.failures import raised


@pytest.fixture
def path(tmp_path):
    """Lines of steps 2 to 8, with evaluations at 4 and 8."""
    path = tmp_path / "metrics.jsonl"
    lines = [
        {"step": 2, "loss": 3.0},
        {"step": 4, "loss": 2.0},
        {"step": 4, "eval": {"loss": 2.5}},
        {"step": 6, "loss": 1.5},
        {"step": 8, "loss": 1.2},
        {"step": 8, "eval": {"loss": 2.1}},
    ]
    write_lines(path, lines)
    return path


def write_lines(path, lines: list[dict]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(text)


def steps_in(path) -> list[int]:
    return [line["step"] for line in MetricsFile.read(str(path))]


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("step", "kept"),
    [
        (0, []),
        (3, [2]),
        (4, [2, 4, 4]),
        (5, [2, 4, 4]),
        (8, [2, 4, 4, 6, 8, 8]),
    ],
)
def test_lines_after_the_checkpoint_are_dropped(path, step, kept):
    before = path.read_bytes()
    file = MetricsFile(str(path), step)
    assert path.read_bytes() == before  # nothing is dropped before a step is taken
    file.begin()
    assert steps_in(path) == kept
    evaluated = [number for number in (4, 8) if number <= step]
    assert sorted(file.evaluations) == evaluated
    file.write({"step": 9, "loss": 1.0})
    assert steps_in(path) == [*kept, 9]
    file.close()


@pytest.mark.parametrize("half", ['{"step": 8, "lo', '{"step": 8, "loss": 2.125}'])
def test_unfinished_lines_are_dropped(path, half):
    """A truncated number is still a number, so only the missing end of the line shows it."""
    with path.open("a") as file:
        file.write(half)
    file = MetricsFile(str(path), 100)
    file.begin()
    file.close()
    assert steps_in(path) == [2, 4, 4, 6, 8, 8]
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
def test_damaged_lines_are_named_and_kept(path, line):
    lines = path.read_bytes().splitlines(keepends=True)
    lines.insert(2, line.encode("latin-1") + b"\n")
    damaged = b"".join(lines)
    path.write_bytes(damaged)
    with pytest.raises(RunError, match=f"^{path}, line 3 is damaged: b'.*'"):
        MetricsFile(str(path), 100)
    assert path.read_bytes() == damaged


def test_missing_files_have_no_lines(tmp_path):
    assert MetricsFile.read(str(tmp_path / "none")) == []


def test_lines_are_written_before_the_file_is_closed(tmp_path):
    path = tmp_path / "new"
    file = MetricsFile(str(path), 0)
    file.write({"step": 1, "eval": {"loss": 1.0}})
    assert file.evaluations == {1: {"loss": 1.0}}
    assert path.read_text() == '{"step": 1, "eval": {"loss": 1.0}}\n'
    file.close()


def change(step: int, **values: list) -> dict:
    return {"step": step, "changed": values}


def test_changes_after_the_checkpoint_are_dropped(path):
    """A change at step 4 applies to later steps. If a key was changed twice, the older value is
    restored."""
    lines = [
        change(2, a=[1, 2]),
        {"step": 4, "loss": 2.0},
        change(4, a=[2, 3], b=[0, 1]),
        change(6, a=[3, 4]),
    ]
    write_lines(path, lines)
    dropped = {8: {}, 6: {"a": 3}, 4: {"a": 2, "b": 0}, 3: {"a": 2, "b": 0}}
    for step, changes in dropped.items():
        assert MetricsFile(str(path), step).dropped_changes == changes
    file = MetricsFile(str(path), 4)
    file.begin()
    file.close()
    assert MetricsFile.read(str(path)) == lines[:2]


def test_evaluations_before_the_first_step_keep_dropped_changes(path):
    """If the run is killed after it, the next start still knows the changes of repeated steps."""
    fourth = {"step": 4, "loss": 2.0}
    fourth_change = change(4, a=[2, 3])
    sixth = {"step": 6, "loss": 1.5}
    sixth_change = change(6, a=[3, 4])
    write_lines(path, [fourth, fourth_change, sixth, sixth_change])
    file = MetricsFile(str(path), 4)
    evaluation = {"step": 4, "eval": {"loss": 2.5}}
    file.write(evaluation)
    file.write(evaluation)  # again, because one host did not see it
    lines = MetricsFile.read(str(path))
    assert lines == [fourth, fourth_change, sixth_change, evaluation]
    assert file.dropped_changes == {"a": 2}
    next_start = MetricsFile(str(path), 4)
    assert next_start.dropped_changes == {"a": 2}
    file.begin()
    fifth = {"step": 5, "loss": 1.0}
    file.write(fifth)
    file.close()
    lines = MetricsFile.read(str(path))
    assert lines == [fourth, evaluation, fifth]


BASELINE = {"name": "token frequencies alone", "eval": {"loss": 2.0}}
LINE_OF_VERSION_0_2 = {"step": 4, "eval": {"loss": 1.0}, "baseline": BASELINE}  # a single baseline


def test_metrics_of_version_0_2_are_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_lines(path, [LINE_OF_VERSION_0_2])
    message = raised(RunError, MetricsFile, str(path), 4)
    assert message.startswith(f"{path}, line 1 ")
    assert "0.2.0" in message


def test_results_of_version_0_2_are_refused(tmp_path):
    path = tmp_path / "result.json"
    write_lines(path, [LINE_OF_VERSION_0_2])
    message = raised(RunError, read_result, str(tmp_path))
    assert message.startswith(f"{path} ")
    assert "0.2.0" in message


def test_the_newest_baselines_are_used():
    first = [{"name": "a", "eval": {"loss": 2.0}}]
    second = [{"name": "b", "eval": {"loss": 2.0}}]
    lines = [{"step": 1, "baselines": first}, {"step": 2, "baselines": second}, {"step": 3}]
    assert newest_baselines(lines) == second
    assert newest_baselines(lines[:1]) == first
    assert newest_baselines([]) == []


def test_missing_results_are_none(tmp_path):
    assert read_result(str(tmp_path)) is None


def test_results_are_read(tmp_path):
    result = {"step": 3, "eval": {"loss": 1.0}, "waiting": {"data": 0.1}}
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert read_result(str(tmp_path)) == result


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"step": 3}',
        '{"step": [], "eval": {}}',
        '{"step": 3, "eval": {"a": []}}',
    ],
)
def test_damaged_results_are_refused(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    message = raised(RunError, read_result, str(tmp_path))
    assert message.startswith(f"{tmp_path}/result.json is damaged")
