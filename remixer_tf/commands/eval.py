"""Evaluates checkpoints of a run.

The command runs the evaluations of evaluate.evaluations on a checkpoint of
--model_dir: the newest, the best, or each one as it appears. What has a result for
this checkpoint, configuration and data is not computed again.
"""

from remixer_tf import configuration


def add_arguments(parser):
    configuration.add_run(parser, ("best", "each"))
    parser.add_argument(
        "--force",
        action="store_true",
        help="compute again what has a result, as after a change of a metric's code",
    )


def run(options):
    configuration.read_run(options, devices="configured")
    bindings = configuration.evaluation_bindings()
    configuration.call_on_run(
        "evaluate", options, bindings=bindings, force=options.force
    )
