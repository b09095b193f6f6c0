import numpy as np

from tests.runs.command import assert_done, final_state


def test_one_checkpoint_of_a_run(commands, text, finished, tmp_path):
    flags = [f"--config.init_from={finished}/checkpoints/8", "--config.steps=1", "--config.optimizer.learning_rate=0.0"]
    assert_done(commands(text, *flags, f"--workdir={tmp_path / 'run'}"))
    assert int(final_state(tmp_path / "run")["step"]) == 1
    old, new = (final_state(folder)["params"]["embedding"] for folder in (finished, tmp_path / "run"))
    assert not np.array_equal(old, new)  # Step 8 is not step 12.
