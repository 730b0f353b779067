"""Draws what mixing matrices and attention learned.

The command writes mixing matrices, mean attention maps, alpha, and the attention in a
text to the folder pictures of --model_dir. Model and data are those of eval.
--gin.Pictures.batch_size=N sets the number of examples, --gin.Pictures.split=test their
split (for images: ImagePictures). --next_to=OTHER_RUN draws another run's layers in the
same figures. --step and --gin options count for all runs. The pictures replace those
that an earlier call drew of the same step.
"""

import argparse
import os

from remixer_tf import configuration
from remixer_tf.commands import add_list, check_once
from remixer_tf.errors import UserError


def add_arguments(parser):
    configuration.add_run(parser)
    parser.add_argument(
        "--text",
        action="append",
        help="draw the attention between the tokens of this input and of the answer; "
        "give it twice for a pair of texts that an encoder reads",
    )
    add_list(
        parser,
        "--next_to",
        "RUN",
        "folder of another run to draw in the same figures, as it was configured; "
        "repeat it for several",
    )


def run(options):
    if not all(text.strip() for text in options.text or ()):
        raise UserError("--text is empty. Give it a text that the model reads.")
    for folder in options.next_to:
        if not os.path.exists(os.path.join(folder, configuration.RUN_FILE)):
            raise UserError(
                f"--next_to={folder} is not the folder of a run: it has no "
                f"{configuration.RUN_FILE}. Name the --model_dir of a run that trained."
            )
    check_once([options.model_dir, *options.next_to])
    own = vars(options)
    asked = [options] + [
        argparse.Namespace(**own | {"model_dir": folder, "gin_file": []})
        for folder in options.next_to
    ]
    parts = {each.model_dir: _parts(each) for each in asked}
    from remixer_tf.analysis.drawing import draw_checkpoints

    print(draw_checkpoints(parts, step=options.step))


def _parts(options):
    """Returns a function that returns the `Run` and the `Pictures` of a run.

    Mistakes in the configuration are raised here, before any model is built.
    """
    settings = configuration.configuration_of_run(options)
    from remixer_tf.analysis.drawing import ImagePictures, Pictures
    from remixer_tf.run import Run

    images = settings.is_set(ImagePictures, "source")
    if not settings.is_set(Run, "model"):
        raise UserError(
            "the configuration names no model to draw (Run.model). Add the model file "
            "of the run with --gin_file."
        )
    if images and options.text:
        raise UserError("--text is for models of text. This run is of images.")
    text = {"text": options.text} if options.text else {}
    kind = ImagePictures if images else Pictures

    def make():
        configuration.put_into_gin(settings)
        return settings.call(Run), settings.call(kind, period=1, **text)

    return make
