"""Answers lines of text.

Every line of --input is answered with a line of --output, in order. A terminal is asked
line by line. Without --gin_file, the configuration is the one that training wrote into
--model_dir.
"""

from remixer_tf import configuration
from remixer_tf.errors import UserError


def add_arguments(parser):
    configuration.add_run(parser)
    parser.add_argument(
        "--input",
        default="-",
        metavar="FILE",
        help="text file, one question a line; standard input if not given, or '-'",
    )
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="written when all is answered; standard output if not given, or '-'",
    )
    parser.add_argument(
        "--scores",
        action="store_true",
        help="after each answer, a tab and its log-probability",
    )
    parser.add_argument(
        "--batch_size",
        type=int,
        default=64,
        metavar="N",
        help="lines answered together (64); it changes the speed, not the answers",
    )


def run(options):
    if options.batch_size < 1:
        raise UserError(
            f"--batch_size must be at least 1. Received: {options.batch_size}."
        )
    configuration.read_run(options, devices="asked")
    from remixer_tf.serving.lines import answer_lines, open_input, open_output, prompt

    with open_input(options.input) as lines, open_output(options.output) as output:
        model, _ = configuration.call(
            "text_to_text",
            configuration.call("Run"),
            options.model_dir,
            step=options.step,
        )
        terminal = lines.isatty()
        if terminal:
            lines, options.batch_size = prompt(lines), 1
        try:
            answer_lines(
                model,
                lines,
                output,
                batch_size=options.batch_size,
                scores=options.scores,
            )
        except KeyboardInterrupt:  # Control-C leaves a prompt, as Control-D does
            if not terminal:
                raise
