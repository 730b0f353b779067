"""Scores a checkpoint: python -m remixer_tf.eval --model_dir=DIR [--step=N] ..."""

import os

from remixer_tf import gin_errors, gin_utils


def main(arguments):
    """Parses the command line and evaluates."""
    options = gin_utils.parse_command_line(
        arguments,
        "Scores a checkpoint of --model_dir on the splits of its task. Without "
        "--gin_file, the configuration is the one that training wrote there.",
        _add_arguments,
    )
    files = options.gin_file
    if not files:
        path = os.path.join(options.model_dir, "operative_config.gin")
        if not os.path.exists(path):
            raise gin_errors.UserError(
                f"there is no {path}. Set --model_dir to the folder of a run, or name "
                "the configuration with --gin_file."
            )
        files = [path]
    gin_utils.parse_gin(files, options.gin_bindings, options.gin_search_paths)
    gin_utils.call("evaluate", options.model_dir, step=options.step)


def _add_arguments(parser):
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="step of the checkpoint; the newest if not given",
    )


if __name__ == "__main__":
    gin_errors.run_binary(main)
