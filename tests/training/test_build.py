"""What is checked and printed before the first step of a run."""

from gmlp_flax import config as gmlp_config
from gmlp_flax.checkpoints import run_folder
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.training.build import build
from tests.custom_blocks import PEEKING, SHIFTING
from tests.failures import raised
from tests.training import tiny


def test_printed_lines(tmp_path, capsys):
    config = tiny.text_config(tmp_path)
    config.optimizer.learning_rate = 0.0
    with run_folder.hold(str(tmp_path / "run")) as folder:
        training, data = build(gmlp_config.resolve(config), folder)
    printed = capsys.readouterr().err
    assert "gmlp, masked_lm: 6 steps of 8 examples on " in printed
    assert f"writing to {tmp_path / 'run'}" in printed
    assert f"{data.training_examples():,} sequences of 16 tokens to train on" in printed
    assert f"{data.evaluation_examples():,} held out" in printed
    assert "config.optimizer.learning_rate is 0" in printed
    assert training.template.params


def test_run_without_a_checkpoint_takes_other_data(tmp_path, capsys):
    """The user may have replaced a file that ended the run before its first checkpoint."""
    config = gmlp_config.resolve(tiny.image_config())
    run = tmp_path / "run"
    with run_folder.hold(str(run)) as folder:
        build(config, folder)
        folder.data["train"]["content"] = "another"
        folder.begin_steps({})
    with run_folder.hold(str(run)) as folder:
        build(config, folder)
        assert folder.data["train"]["content"] != "another"
    printed = capsys.readouterr().err
    assert "(different content): it has no checkpoint, and starts with these\n" in printed
    (run / "checkpoints" / "3").mkdir(parents=True)
    (run / "config.json").write_text(gmlp_config.to_json(config.config))
    with run_folder.hold(str(run)) as folder:
        assert "(different content): give the run's data" in raised(RunError, build, config, folder)


def test_new_parameters_have_no_adapters(tmp_path):
    config = tiny.text_config(tmp_path)
    config.optimizer.lora_rank = 2
    resolved = gmlp_config.resolve(config)
    with run_folder.hold(str(tmp_path / "run")) as folder:
        assert "config.optimizer.lora_rank" in raised(RunError, build, resolved, folder)


def test_causal_model_of_a_block_that_mixes_all_tokens_is_refused(tmp_path):
    """Such a model would have scores that are too good."""
    for block in (SHIFTING, PEEKING):
        config = gmlp_config.default(task="causal_lm", block=block)
        config.model.update(layers=1, length=16, d_model=8, vocab_size=261, causal=True)
        config.data.tokenizer = "bytes"
        config.data.cache = str(tmp_path / "cache")
        resolved = gmlp_config.resolve(config)
        with run_folder.hold(str(tmp_path / block)) as folder:
            if block == PEEKING:
                assert "depends on later tokens" in raised(ConfigError, build, resolved, folder)
            else:
                build(resolved, folder)
