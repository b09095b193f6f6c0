import json
import lzma

import pytest

from tests import preloaded
from tests.data.conftest import shared_data  # noqa: F401 - a fixture
from tests.data.finetuning.squad_files import article, entry, write

CONTEXT = "Paris is the capital of France. Lyon is not."


def run(*arguments):
    return preloaded.gmlp("score-squad", *arguments)


@pytest.fixture
def data(tmp_path):
    entries = [
        entry("a", "What is Paris?", CONTEXT, "the capital", "capital of France"),
        entry("b", "What is not?", CONTEXT, "Lyon"),
        entry("c", "What is Rome?", CONTEXT, is_impossible=True),
    ]
    return write(tmp_path / "data.json", article("Capitals", CONTEXT, *entries))


def written(path, content):
    path.write_text(json.dumps(content))
    return path


def test_scores(data, tmp_path):
    predictions = written(tmp_path / "p.json", {"a": "Capital of Spain", "c": ""})
    result = run(data, predictions)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {
        "exact": pytest.approx(100 / 3),
        "f1": pytest.approx((100 * 2 / 3 + 100) / 3),
        "total": 3,
        "HasAns_exact": 0.0,
        "HasAns_f1": pytest.approx(100 / 3),
        "HasAns_total": 2,
        "NoAns_exact": 100.0,
        "NoAns_f1": 100.0,
        "NoAns_total": 1,
        "missing_filled_with_empty": 1,
    }
    (tmp_path / "p.json.xz").write_bytes(lzma.compress(predictions.read_bytes()))
    assert run(data, tmp_path / "p.json.xz").stdout == result.stdout


def test_odds(data, tmp_path):
    predictions = written(tmp_path / "p.json", {"a": "the capital", "b": "Lyon", "c": "Rome"})
    odds = written(tmp_path / "odds.json", {"a": -3, "b": -1.5, "c": -2.5})
    found = json.loads(run(data, predictions, f"--null_odds={odds}").stdout)
    assert found["exact"] == pytest.approx(200 / 3)
    assert (found["best_f1"], found["best_f1_thresh"]) == (pytest.approx(200 / 3), -3.0)
    result = run(data, predictions, f"--null_odds={written(odds, {'a': float('nan')})}")
    assert result.returncode == 2 and "odds.json, question a: found nan; expected odds" in result.stderr


def test_odds_above_the_official_threshold_count_as_no_answer(data, tmp_path):
    """The official script's --na-prob-thresh, 1.0 unless given."""
    predictions = written(tmp_path / "p.json", {"a": "the capital", "b": "Lyon", "c": "Rome"})
    odds = f"--null_odds={written(tmp_path / 'odds.json', {'a': 1.5, 'b': 1.0, 'c': 2.5})}"
    found = json.loads(run(data, predictions, odds).stdout)
    assert (found["HasAns_exact"], found["NoAns_exact"], found["exact"]) == (50.0, 100.0, pytest.approx(200 / 3))
    found = json.loads(run(data, predictions, odds, "--na_prob_thresh=2").stdout)
    assert (found["HasAns_exact"], found["NoAns_exact"]) == (100.0, 100.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (["x"], "p.json: found list"),
        ({"a": None}, "p.json, question a: found None"),
        ({"x": "y"}, "p.json: none of its 1 ids is a question of DATA"),
    ],
)
def test_bad_predictions(data, tmp_path, content, message):
    result = run(data, written(tmp_path / "p.json", content))
    assert result.returncode == 2 and result.stderr.count("\n") == 1 and not result.stdout
    assert result.stderr.startswith("error: ") and message in result.stderr
