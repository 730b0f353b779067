"""Scores a checkpoint: python -m remixer_tf.eval --model_dir=DIR [--step=N] ..."""

from remixer_tf import configuration


def main(arguments):
    """Parses the command line and evaluates."""
    options = configuration.parse_run(
        arguments,
        "Runs the evaluations of evaluate.evaluations on a checkpoint of --model_dir: "
        "the newest, the best, or each one as it appears. What is scored already is "
        "not scored again.",
        steps=("best", "each"),
        devices="configured",
    )
    configuration.call("evaluate", options.model_dir, step=options.step)


if __name__ == "__main__":
    configuration.run_binary(main)
