"""Trains a model, or goes on where a run was interrupted.

    gmlp train --config=quickstart_text --workdir=runs/text --config.steps=1000
    gmlp train --config=FILE[:ARGUMENT] --workdir=DIR [--config.KEY=VALUE ...]

The same command again goes on where the run was interrupted. --help_config prints every config key.

On several hosts the same command runs on each. A TPU slice, SLURM and Open MPI are detected; elsewhere
--coordinator=HOST:PORT --processes=N --process=I tell each process of the others.

Exit code 0: finished, or stopped by a signal and saved. 2: a mistake in the flags, the config or the data, told in one
line. Any other: a restart may help, for example after a lost host or a step that hangs.
"""

from __future__ import annotations

from absl import flags

from gmlp_flax.commands import cli


def main(_argv: list[str]) -> None:
    """Trains, then draws the run's loss curve."""
    usage = "train --config=NAME --workdir=DIR [--config.KEY=VALUE ...]"
    cli.required("config", usage)
    workdir = cli.required("workdir", usage)
    # Imported here so that --help_config and mistakes in flags answer at once.
    with cli.among_processes():
        from gmlp_flax.analysis import curves
        from gmlp_flax.processes import distributed
        from gmlp_flax.training import loop

        if loop.train(flags.FLAGS.config, workdir) is not None and distributed.is_first():
            print(curves.draw(workdir))


def run() -> None:
    """The command line."""
    flags.DEFINE_string("workdir", None, "The run folder: config, metrics, result, checkpoints, figures.")
    cli.define_multihost_flags()
    cli.run(main, parser=cli.parse_flags_with_config)
