"""Trains a model, or resumes training.

Training resumes from the last checkpoint in --model_dir.
"""

import argparse
from contextlib import nullcontext

from remixer_tf import configuration


def add_arguments(parser):
    configuration.add_common(parser)
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="build the model, read one batch, say what would run, and stop",
    )
    parser.add_argument(
        "--no_layer_checks",
        action="store_true",
        help="do not try layers of your own before training: whether they see later "
        "tokens, decode what they train and keep packed examples apart",
    )
    parser.add_argument(
        "--profile",
        type=_steps,
        metavar="START:STOP",
        help="write a trace of the steps after START until STOP, for TensorBoard and "
        "Perfetto, to tensorboard/train/plugins/profile in the run's folder",
    )


def _steps(text):
    try:
        start, stop = map(int, text.split(":"))
    except ValueError:
        message = f"is START:STOP, two steps such as 10:15. Received: {text}"
        raise argparse.ArgumentTypeError(message) from None
    return start, stop


def run(options):
    settings = configuration.read_configuration(options)
    from remixer_tf.configured import train_run
    from remixer_tf.data.failures import data_errors
    from remixer_tf.data.vocabulary_training import vocabularies_for_a_while

    dry = vocabularies_for_a_while() if options.dry_run else nullcontext()
    with dry, data_errors():
        train_run(
            settings,
            options.model_dir,
            dry_run=options.dry_run,
            layer_checks=not options.no_layer_checks,
            profile=options.profile,
        )
