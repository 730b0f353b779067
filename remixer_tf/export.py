"""Writes a SavedModel: python -m remixer_tf.export --model_dir=DIR [--step=N] ..."""

import os

from remixer_tf import configuration


def main(arguments):
    """Parses the command line and exports."""
    options = configuration.parse_run(
        arguments,
        "Writes a checkpoint of --model_dir as the SavedModel <model_dir>/export/"
        "<step>: strings in, answers and scores out.",
    )
    model, step = configuration.call(
        "text_to_text", options.model_dir, step=options.step
    )
    from remixer_tf.serving.saved_model import export

    folder = os.path.join(options.model_dir, "export")
    print(export(model, folder, step, configuration.configuration_str()))


if __name__ == "__main__":
    configuration.run_binary(main)
