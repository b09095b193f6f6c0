"""A site of all reports: where it finds runs, and what it says of the rest."""

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.reports import catalogue
from tests.reports import made_up_columns
from tests.reports.test_language_models import PERPLEXITIES, write_runs

COUNTED = {"table1", "table5"}
SOME = ("table1", "table3", "table4", "table5", "table6", "figure4", "figure5", "figure8")


def train_longer(run):
    """Changes the token budget in a run's config."""
    made = config_lib.load(str(run / "config.json"))
    made.steps += 1
    (run / "config.json").write_text(config_lib.to_json(made))


@pytest.fixture
def out(tmp_path, monkeypatch):
    """The folder of the site; it has fewer reports, for the sake of time."""
    monkeypatch.setattr(catalogue, "TABLES", {name: TABLES[name] for name in SOME})
    return tmp_path / "site"


def test_runs_are_found_by_the_name_of_their_folder(tmp_path, out):
    """Not those of another table that has the same rows."""
    write_runs(tmp_path / "runs" / "table4-cpu", "table4", {"gmlp_18": ((9.0, 8.0),)})
    write_runs(tmp_path / "runs" / "figure5", "figure5", {"gmlp_18": ((9.0, 7.0),), "gmlp_36": ((9.0, 6.0),)})
    found = catalogue.write_site(str(tmp_path / "runs"), "cpu", str(out))
    assert set(found.made) == COUNTED | {"table3", "table4", "figure5", "figure8"} and not found.refused
    tables = {name: (out / name / "table.md").read_text() for name in ("table4", "figure5", "figure8")}
    assert "| gmlp_18 | 0.458 | 8.00 |" in tables["table4"] and "gmlp_36 |" not in tables["table4"]
    assert "| gmlp_18 | 0.458 | 7.00 |" in tables["figure5"]
    assert "| gmlp_36 |" in tables["figure8"]  # from where most of its runs are
    # Figure 4's run is there, as a row of figure5, but has no checkpoint.
    assert "no checkpoint" in found.absent["figure4"] and found.absent["table6"] == "there is no run of it"


def test_index_and_one_library(tmp_path, out):
    write_runs(tmp_path / "runs")
    found = catalogue.write_site(str(tmp_path / "runs"), "cpu", str(out))
    text = (out / "index.html").read_text()
    assert found.path == str(out / "index.html")
    for name in found.made:
        assert f'<a href="{name}/index.html">' in text and (out / name / "index.html").exists()
    assert "table3/curves.svg" in text and "<b>table6</b>: there is no run of it" in text
    assert [str(path.relative_to(out)) for path in out.rglob("*.js")] == ["plotly.min.js"]


def test_what_cannot_stand_in_one_report_is_refused_and_the_rest_is_made(tmp_path, out):
    write_runs(tmp_path / "runs" / "a", perplexities=PERPLEXITIES)
    write_runs(tmp_path / "runs" / "table3", perplexities={"sgu": PERPLEXITIES["sgu"]})
    train_longer(tmp_path / "runs" / "table3" / "sgu-1")
    found = catalogue.write_site(str(tmp_path / "runs"), "cpu", str(out))
    assert set(found.made) >= COUNTED and "table3" not in found.made
    assert list(found.refused) == ["table3"] and "token budgets: steps is 900" in found.refused["table3"]
    assert "token budgets: steps is 900" in (out / "index.html").read_text()


def test_the_alternatives_are_made_of_a_folder_of_their_name(tmp_path, out, monkeypatch):
    monkeypatch.setattr(catalogue, "TABLES", {"alternatives": TABLES["alternatives"]})
    made_up_columns.write_costs(tmp_path / "runs" / "alternatives-cpu", {"sgu": (1.0, 1.0), "fnet": (1.0, 1.0)})
    found = catalogue.write_site(str(tmp_path / "runs"), "cpu", str(out))
    assert found.made == ["alternatives"] and (out / "alternatives" / "costs.svg").exists()
    found = catalogue.write_site(str(tmp_path), "cpu", str(out))
    assert found.absent == {"alternatives": "there is no run of it"}
