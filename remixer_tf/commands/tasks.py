"""Lists the registered tasks and mixtures.

--module_import=MODULE adds tasks of your own. T5's tasks need the library t5.
"""

import fnmatch
import sys

from remixer_tf import configuration, console
from remixer_tf.commands import add_pattern
from remixer_tf.errors import UserError, nearest


def add_arguments(parser):
    parser.usage = "%(prog)s [options] [PATTERN]"
    add_pattern(parser, "super_glue*")
    configuration.add_module_import(parser)


def run(options):
    configuration.load_tensorflow()
    import seqio

    from remixer_tf.data.late_tasks import register_waiting

    configuration.read([], [], modules=options.module_import)
    try:
        register_waiting()
    except ImportError as error:
        print(f"T5's tasks are not listed: {error}", file=sys.stderr)
    names = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
    found = sorted(fnmatch.filter(names, options.pattern))
    if not found:
        raise UserError(
            f"there is no task {options.pattern!r}.{nearest(options.pattern, names)} "
            "`remixer_tf tasks` lists all."
        )
    for name in found:
        console.say(name, "result", fields={"task": name})
