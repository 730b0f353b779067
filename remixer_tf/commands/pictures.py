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
    configuration.read_run(options)
    images = configuration.is_set("ImagePictures.source")
    if not configuration.is_set("Run.model"):
        raise UserError(
            "the configuration names no model to draw (Run.model). Add the model file "
            "of the run with --gin_file."
        )
    if images and options.text:
        raise UserError("--text is for models of text. This run is of images.")
    from remixer_tf.analysis.drawing import draw_checkpoint

    run = configuration.call("Run")
    text = {"text": options.text} if options.text else {}
    name = "ImagePictures" if images else "Pictures"
    pictures = configuration.call(name, period=1, **text)
    print(draw_checkpoint(run, options.model_dir, pictures, step=options.step))
