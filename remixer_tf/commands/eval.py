"""Evaluates checkpoints of a run.

The evaluations of evaluate.evaluations run on a checkpoint of --model_dir: the newest,
the best, or each one as it appears. A result for the same checkpoint, configuration and
data is not computed again.
"""

from remixer_tf import configuration


def add_arguments(parser):
    configuration.add_run(parser, ("best", "each"))
    help = "compute again what has a result, as after a change of a metric's code"
    parser.add_argument("--force", action="store_true", help=help)


def run(options):
    settings = configuration.read_run(options, devices="configured")
    from remixer_tf.configured import evaluate_run

    evaluate_run(settings, options.model_dir, options.step, options.force)
