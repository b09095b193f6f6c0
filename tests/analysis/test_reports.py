"""What reports there are."""

from __future__ import annotations

import json
import runpy

from gmlp_flax import config as config_lib
from gmlp_flax import recipes
from gmlp_flax.analysis import reports


def identity(config):
    """What tells rows apart."""
    return json.dumps(config.model.to_dict(), default=str), config.steps


def test_every_report_of_runs_can_be_trained_at_every_scale():
    trained = {name: made for name, made in reports.REPORTS.items() if isinstance(made, reports.Trained)}
    assert set(trained) == {
        "table3", "table4", "table6", "appendix_b",
        "figure3", "figure4", "figure5", "figure7", "figure8", "figure9", "figure10",
    }
    for name, made in trained.items():
        assert set(made.tasks) <= set(recipes.FINETUNED)
        swept = runpy.run_path(f"configs/sweeps/{made.sweep}.py")["get_sweep"]
        for scale in ("cpu", "gpu", "paper"):
            found = made.configs(scale)
            for config in found.values():
                config_lib.validate(config)
            identities = {identity(config) for config in found.values()}
            assert len(identities) == len(found), "two rows are one model, trained alike"
            # What is trained is what is looked for.
            for point in swept(scale):
                path, _, argument = point["config"].partition(":")
                made_of_point = config_lib.from_file(path, argument)
                made_of_point.update_from_flattened_dict({key: value for key, value in point.items() if key != "config"})
                assert identity(made_of_point) in identities, (name, point)
