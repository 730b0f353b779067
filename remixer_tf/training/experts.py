"""What the log says of a mixture's experts, from the statistics that layers sow."""

import numpy as np

_MUCH_DROPPED = 0.1


def imbalances(values):
    """Returns the largest load over the mean load of each layer, 1 if they are even.

    The names are "statistics/<layer>/load_largest_over_mean"; NaN if there was no load.
    """
    return {
        f"{name}_largest_over_mean": float(np.max(load) / (np.mean(load) or np.nan))
        for name, load in values.items()
        if _is(name, "load")
    }


def warning(values):
    """Names layers with an expert that nothing chose, or with many choices dropped.

    Of a dictionary from `summarize_steps`, a line; None if all is well.
    """
    problems = {}  # layer -> what is wrong
    for name, value in values.items():
        layer = name.removeprefix("statistics/").rpartition("/")[0]
        if _is(name, "load") and len(unused := np.flatnonzero(value == 0)):
            what = f"{len(unused)} of {len(value)} experts unused ({_list(unused)})"
            problems.setdefault(layer, []).append(what)
        if _is(name, "dropped") and value > _MUCH_DROPPED:
            what = f"{100 * value:.0f}% of the choices dropped"
            problems.setdefault(layer, []).append(what)
    if not problems:
        return None
    layers = (f"{layer}: {', '.join(what)}" for layer, what in problems.items())
    return f"warning: since the last log line, {'; '.join(layers)}"


def _is(name, statistic):
    return name.startswith("statistics/") and name.endswith(f"/{statistic}")


def _list(numbers, most=8):
    shown = ", ".join(map(str, numbers[:most]))
    return shown + (", ..." if len(numbers) > most else "")
