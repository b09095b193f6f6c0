"""Trains a model: python -m gmlp_flax.train --config=configs/x.py[:ARG] --workdir=DIR [--config.a.b=VALUE ...]

The same command again goes on where the run was interrupted. --help_config prints every config key.

On several hosts the same command runs on each; a TPU slice, SLURM and Open MPI are detected, elsewhere
--coordinator=HOST:PORT --processes=N --process=I tell each process of the others.

Exit code 0: finished, or stopped by a signal and saved; 2: the user has something to mend, in one line; another: what a
restart may cure, such as a lost host or a step that hangs.
"""

from __future__ import annotations

from absl import flags

from gmlp_flax import cli


def define_flags() -> None:
    """Defines what the command takes."""
    cli.define_config_flag()
    flags.DEFINE_string("workdir", None, "The run folder: config, metrics, result, checkpoints, figures.")
    cli.define_multihost_flags()
    flags.DEFINE_bool("help_config", False, "Print every config key with its default and meaning, and exit.")


def main(_argv: list[str]) -> None:
    """Trains, then draws the run's loss curve."""
    usage = "train --config=configs/x.py --workdir=DIR [--config.KEY=VALUE ...]"
    config, workdir = cli.required("config", usage), cli.required("workdir", usage)
    # Imported here so that --help_config and mistakes in flags answer at once.
    with cli.among_processes():
        from gmlp_flax.analysis import curves
        from gmlp_flax.training import distributed, loop

        if loop.train(config, workdir) is not None and distributed.is_first():
            print(curves.draw(workdir))


if __name__ == "__main__":
    define_flags()
    cli.run(main)
