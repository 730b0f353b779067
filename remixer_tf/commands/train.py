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
        help="build the model, read one batch, say what would run, and stop; for a "
        "mesh with more devices than there are, say what each would hold",
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
    configuration.read_configuration(options)
    import keras

    from remixer_tf.data.failures import data_errors
    from remixer_tf.data.vocabulary_training import vocabularies_for_a_while
    from remixer_tf.engines.jax.engine import MissingDevicesError

    try:
        dry = vocabularies_for_a_while() if options.dry_run else nullcontext()
        with dry, data_errors():
            engine = configuration.get_value("Run.engine")
            if options.dry_run and engine and keras.backend.backend() == "jax":
                engine()  # Missing devices come first; no vocabulary is needed yet.
            configuration.train(
                options.model_dir,
                dry_run=options.dry_run,
                layer_checks=not options.no_layer_checks,
                profile=options.profile,
            )
    except MissingDevicesError:
        if not options.dry_run:
            raise
        print(_each_device())


def _each_device():
    """Says what each device of a mesh would hold, where there are fewer devices."""
    from remixer_tf.engines.jax.layout import declare_run, device_memory
    from remixer_tf.run import Run

    bound = configuration.get_value
    run = Run(  # Without the task and the vocabulary: their files need not be here.
        bound("Run.model"),
        dtype_policy=bound("Run.dtype_policy", "float32"),
        adapters=bound("Run.adapters"),
        trainable=bound("Run.trainable"),
        frozen=bound("Run.frozen"),
    )
    optimizer = bound("train.optimizer")
    declared = declare_run(run.make_model, optimizer, run.dtype_policy)
    layout = configuration.configured_layout()
    return (
        f"dry run: here are fewer than the {layout.num_devices} devices of the mesh "
        f"{layout.axes}. Each would hold {device_memory(layout, *declared)}, and "
        "activations. Nothing was trained or written."
    )
