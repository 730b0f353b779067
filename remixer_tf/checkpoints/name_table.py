"""A table of what came from where, with the layers drawn together."""

import re


def name_table(names):
    """Draws {variable: origin} together, one line for what differs by numbers alone.

    Args:
        names: {str: str}; the first number in both counts layers.

    Returns:
        str, lines of the form `variable  <-  origin  (how many)`.
    """
    groups = {}
    for name, origin in names.items():
        key = tuple(
            re.sub(r"(?<=[_./])\d+(?=[_./])", "*", x, count=1) for x in (name, origin)
        )
        groups[key] = groups.get(key, 0) + 1
    width = max((len(name) for name, _ in groups), default=0)
    return "\n".join(
        f"  {name:{width}}  <-  {origin}" + (f"  ({count})" if count > 1 else "")
        for (name, origin), count in groups.items()
    )
