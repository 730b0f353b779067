"""Draws what mixing matrices and attention learned.

The folder pictures of --model_dir receives mixing matrices, mean attention maps, alpha,
and attention in a text. Model and data are those of eval; --gin.Pictures.batch_size=N
sets the number of examples, --gin.Pictures.split=test their split (of images
--gin.ImagePictures).
"""

from remixer_tf import configuration
from remixer_tf.errors import UserError


def add_arguments(parser):
    configuration.add_run(parser)
    parser.add_argument(
        "--text",
        action="append",
        help="draw the attention between the tokens of this input, and of the answer; "
        "twice for a pair of texts that an encoder reads",
    )


def run(options):
    configuration.read_run(options)
    images = configuration.is_set("ImagePictures.source")
    if not configuration.is_set("Run.model"):
        raise UserError(
            "the configuration names no model to draw (Run.model). Add the model file "
            "of the run with --gin_file."
        )
    given = {}
    if images and options.text:
        raise UserError("--text is for models of text. This run is of images.")
    if options.text:
        given["text"] = options.text
    from remixer_tf.analysis.drawing import draw_checkpoint

    page = draw_checkpoint(
        configuration.call("Run"),
        options.model_dir,
        configuration.call(
            "ImagePictures" if images else "Pictures", period=1, **given
        ),
        step=options.step,
    )
    print(page)
