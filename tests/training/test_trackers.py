import builtins

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.training import trackers


@pytest.mark.parametrize(("extra", "package", "value"), [("tensorboard", "tensorboardX", True), ("wandb", "wandb", "project")])
def test_missing_extra_is_one_line(config, tmp_path, monkeypatch, extra, package, value):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name == package:
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    config.log[extra] = value
    with pytest.raises(RunError, match=rf"^config.log.{extra} needs a package that is not installed: pip install 'gmlp_flax\[{extra}\]'$"):
        trackers.make(config, str(tmp_path))


def test_no_trackers_unless_asked_for(config, tmp_path):
    assert trackers.make(config, str(tmp_path)) == []
