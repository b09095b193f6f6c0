import numpy as np
import pytest

from tests.runs.command import assert_done, final_state


@pytest.mark.slow
@pytest.mark.parametrize("length", [12, 20])
def test_another_length(commands, text, finished, tmp_path, length):
    """At learning rate 0 the parameters stay what warm starting makes of them."""
    flags = [f"--config.init_from={finished}", f"--config.model.length={length}", "--config.steps=1"]
    result = commands(text, *flags, "--config.optimizer.learning_rate=0.0", f"--workdir={tmp_path / 'run'}")
    assert_done(result)
    old, new = final_state(finished)["params"], final_state(tmp_path / "run")["params"]
    np.testing.assert_array_equal(new["embedding"], old["embedding"])
    taps, old_taps = (tree["encoder"]["blocks"]["gate"]["spatial"]["taps"] for tree in (new, old))
    assert taps.shape == (2, 2 * length - 1)
    expected = old_taps[:, 4:-4] if length == 12 else np.pad(old_taps, ((0, 0), (4, 4)))
    np.testing.assert_array_equal(taps, expected)


def test_one_checkpoint_of_a_run(commands, text, finished, tmp_path):
    flags = [f"--config.init_from={finished}/checkpoints/8", "--config.steps=1", "--config.optimizer.learning_rate=0.0"]
    assert_done(commands(text, *flags, f"--workdir={tmp_path / 'run'}"))
    assert int(final_state(tmp_path / "run")["step"]) == 1
    old, new = (final_state(folder)["params"]["embedding"] for folder in (finished, tmp_path / "run"))
    assert not np.array_equal(old, new)  # Step 8 is not step 12.
