"""How much of a T5.1.1's function a Remixer starts with.

    python -m studies.from_t5 --t5=RUN --gin_file=models/remixer_tiny.gin ...

RUN is a run of ours, trained or imported; the gin files and `--gin` bindings are those
of a Remixer's run on the same task. Prints the loss per target token on batches of the
task, for the T5 and for the Remixer before its first step. The Remixer is measured with
and without the settings that `runs/from_t5_1_1.gin` adds to the matrices it takes.
"""

import sys

import numpy as np

from remixer_tf import configuration
from remixer_tf.checkpoints.reading import restore_model
from remixer_tf.commands import errors_in_one_line
from remixer_tf.models.build import build_model
from remixer_tf.objectives.losses import cross_entropy
from remixer_tf.run import Run
from remixer_tf.tables import markdown, markdown_row
from remixer_tf.training.loop import train
from remixer_tf.training.settings import Checkpointing

FROM_T5 = "runs/from_t5_1_1.gin"
# Name, bindings after those of the gin file.
STARTS = (
    (
        "Remixer, H as initialised, alpha 0.5",
        ["InitialCheckpoint.fresh = []", "RemixerBlock.alpha = 0.5"],
    ),
    ("Remixer, softmax(H) near 1, alpha 0.5", ["RemixerBlock.alpha = 0.5"]),
    (f"Remixer, {FROM_T5}", []),
    (
        "Remixer, H of gain 6, alpha 0.02",
        [
            "identity_mixing.gain = 6.0",
            "InitialCheckpoint.fresh = [('mixing_matrix$', @identity_mixing), "
            "('alpha_logit$', -4.0)]",
        ],
    ),
)


def add_arguments(parser):
    configuration.add_common(parser, run="optional")
    parser.add_argument("--t5", required=True, metavar="RUN")


def main(arguments):
    options = configuration.parse_command_line(
        arguments,
        "Compares losses at the start.",
        add_arguments,
    )
    settings = configuration.read([f"{options.t5}/operative_config.gin"], [])
    t5 = build_model(settings.value(Run, "model"), "float32")
    restore_model(options.t5, t5)
    print(markdown(["model", "loss", "nats above T5's"]))
    of_t5 = None
    for name, bindings in (("T5.1.1", None), *STARTS):
        model = t5
        if bindings is not None:
            path = f"INITIAL_CHECKPOINT = {options.t5!r}"
            settings = configuration.read(
                [*options.gin_file, FROM_T5],
                [*options.gin_bindings, path, *bindings],
                options.gin_search_paths,
            )
            model = build_model(settings.value(Run, "model"), "float32")
            settings.value(Checkpointing, "initial")(model)
        loss = _loss(model, settings)
        of_t5 = loss if of_t5 is None else of_t5
        cells = name, f"{loss:.4f}", f"{loss - of_t5:+.4f}"
        print(markdown_row(cells), flush=True)


def _loss(model, settings, batches=20):
    """The loss per token on the first batches of the configuration's training data."""
    dataset = settings.value(train, "dataset")
    data = dataset(seed=1, steps_per_call=1, shard_info=None)
    sums = np.zeros(2)
    for batch in data.take(batches):
        batch = {key: value[0] for key, value in batch.items()}
        values = cross_entropy(
            model(batch),
            batch["decoder_target_tokens"],
            batch["decoder_loss_weights"],
        )
        sums += [float(values["loss"]), float(values["weight"])]
    return sums[0] / sums[1]


if __name__ == "__main__":
    with errors_in_one_line():
        main(sys.argv[1:])
