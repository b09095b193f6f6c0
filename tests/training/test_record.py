"""The settings of a run beside those of the steps to come; whole runs are in tests/runs."""

from gmlp_flax import config as gmlp_config
from gmlp_flax.config import schema
from gmlp_flax.training import record


def test_changes_of_an_older_run_are_told_by_today_s_names(tmp_path):
    """A line of metrics.jsonl whose steps are lost may have the name that a key had when it was written."""
    before = gmlp_config.default()
    (tmp_path / "config.json").write_text(gmlp_config.to_json(before))
    after = gmlp_config.default()
    after.optimizer.grad_accum_steps = 4
    undone = {old: [2] if new.endswith("multipliers") else 2 for old, new in schema.RENAMED.items()}
    assert record.changes(str(tmp_path), after, undone) == {
        "optimizer.lr_multipliers": ([2], ()),
        "optimizer.grad_accum_steps": (2, 4),
    }
