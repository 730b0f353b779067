"""How benchmarks compare: contestants take turns, and medians and ratios are printed.

A machine that other programs use disturbs all contestants of a round alike, so ratios
are taken within a round; the median over the rounds is what a table shows.
"""

import statistics
import time

from remixer_tf.tables import markdown, markdown_row


def seconds(function, clock=time.perf_counter):
    """The time of one call, in seconds.

    Args:
        function: takes no arguments and returns when its work is done.
        clock: a function that returns the time in seconds, such as `time.process_time`.
    """
    start = clock()
    function()
    return clock() - start


def take_turns(contestants, rounds, clock=time.perf_counter):
    """Times each contestant once a round.

    Args:
        contestants: dictionary of names to functions, see `seconds`.
        rounds: int.
        clock: see `seconds`.

    Returns:
        list of `rounds` dictionaries of names to seconds.
    """
    return [
        {name: seconds(function, clock) for name, function in contestants.items()}
        for _ in range(rounds)
    ]


def median(rounds, name):
    """The median of one contestant's seconds over the rounds of `take_turns`."""
    return statistics.median(times[name] for times in rounds)


def ratio(rounds, name, other):
    """The median over the rounds of one contestant's seconds over another's."""
    return statistics.median(times[name] / times[other] for times in rounds)


def print_header(*columns):
    """Prints the first two lines of a Markdown table."""
    print(markdown(columns), flush=True)


def print_row(*cells):
    """Prints one line of a Markdown table."""
    print(markdown_row(cells), flush=True)
