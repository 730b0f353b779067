"""Scores a checkpoint: python -m remixer_tf.eval --model_dir=DIR [--step=N] ..."""

from remixer_tf import configuration


def main(arguments):
    """Parses the command line and evaluates."""
    options = configuration.parse_run(
        arguments,
        "Scores a checkpoint of --model_dir on the splits of its task, or on images: "
        "the newest, the best, or each one as it appears. What is scored already is "
        "not scored again.",
        steps=("best", "each"),
    )
    images = configuration.is_set("evaluate_images.evaluations")
    name = "evaluate_images" if images else "evaluate"
    configuration.call(name, options.model_dir, step=options.step)


if __name__ == "__main__":
    configuration.run_binary(main)
