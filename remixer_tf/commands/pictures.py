"""Draws what mixing matrices and attention learned.

The command writes mixing matrices, mean attention maps, alpha, and the attention in a
text to the folder pictures of --model_dir. Model and data are those of eval.
--gin.Pictures.batch_size=N sets the number of examples, --gin.Pictures.split=test their
split (for images: ImagePictures).
"""

from remixer_tf import configuration
from remixer_tf.errors import UserError


def add_arguments(parser):
    configuration.add_run(parser)
    parser.add_argument(
        "--text",
        action="append",
        help="draw the attention between the tokens of this input and of the answer; "
        "give it twice for a pair of texts that an encoder reads",
    )


def run(options):
    settings = configuration.read_run(options)
    from remixer_tf.analysis.drawing import ImagePictures, Pictures, draw_checkpoint
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
    pictures = settings.call(ImagePictures if images else Pictures, period=1, **text)
    run = settings.call(Run)
    print(draw_checkpoint(run, options.model_dir, pictures, step=options.step))
