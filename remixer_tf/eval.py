"""Scores a checkpoint: python -m remixer_tf.eval --model_dir=DIR [--step=N] ..."""

from remixer_tf import configuration


def main(arguments):
    """Parses the command line and evaluates."""
    options = configuration.parse_run(
        arguments,
        "Runs the evaluations of evaluate.evaluations on a checkpoint of --model_dir: "
        "the newest, the best, or each one as it appears. What has a result for this "
        "checkpoint, configuration and data is not computed again.",
        _add_arguments,
        steps=("best", "each"),
        devices="configured",
    )
    configuration.call(
        "evaluate",
        options.model_dir,
        step=options.step,
        bindings=configuration.evaluation_bindings("evaluate"),
        force=options.force,
    )


def _add_arguments(parser):
    parser.add_argument(
        "--force",
        action="store_true",
        help="compute again what has a result, as after a change of a metric's code",
    )


if __name__ == "__main__":
    configuration.run_binary(main)
