"""Puts runs side by side.

The tables have parameters, FLOPs, steps, time, speed, memory, the last and the best
value of each metric, and the gin bindings that differ. Runs that differ only in their
seed are one column: means and standard deviations, and the number of seeds. As CSV each
run has its numbers too. With --metric the table has a contestant in each row. All is
read from the runs' files. FLOPs are those of training steps, forward and backward:
`remixer_tf costs --model_dir=RUN` counts a forward pass by parts, and activations. The
decoding rate is that of the last evaluation that decoded: a run without one gets it by
`remixer_tf eval --model_dir=RUN` with a DecodedEvaluation. Configurations are compared
as text: the command imports no module of theirs, and has no options for gin.
"""

from remixer_tf import configuration
from remixer_tf.commands import add_contest, check_contest, check_once, write_runs


def add_arguments(parser):
    parser.usage = "%(prog)s [options] RUN ..."
    parser.add_argument("runs", nargs="+", metavar="RUN", help="--model_dir of a run")
    add_contest(parser)


def run(options):
    check_contest(options)
    check_once(options.runs)
    configuration.load_tensorflow()
    from remixer_tf.analysis.comparison import by_configuration, read_run
    from remixer_tf.serving.lines import open_text_output

    with open_text_output(options.output) as output:
        reader = configuration.read_bindings
        runs = {folder: read_run(folder, reader) for folder in options.runs}
        write_runs(runs, by_configuration(runs), options, output)
