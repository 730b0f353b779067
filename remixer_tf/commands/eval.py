"""Evaluates checkpoints of a run.

The command runs the evaluations of evaluate.evaluations on a checkpoint of
--model_dir: the newest, the best, or each one as it appears. What has a result for
this checkpoint, configuration and data is not computed again. Without --gin_file, the
configuration is the one that training wrote into --model_dir.
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
    configuration.call(
        "evaluate",
        configuration.call("Run"),
        options.model_dir,
        step=options.step,
        bindings=configuration.evaluation_bindings(),
        force=options.force,
    )
