"""Lists the named models.

A name is a file: --gin_file=models/NAME.gin, or remixer_tf.create("NAME") in Python.
"""

from remixer_tf.commands import add_pattern
from remixer_tf.named_models import Presets, find_presets, read_preset


def add_arguments(parser):
    parser.usage = "%(prog)s [PATTERN]"
    add_pattern(parser, "gmlp*")


def run(options):
    names = find_presets(options.pattern, how="`remixer_tf presets`")
    print(Presets(map(read_preset, names)))
