"""A table of what came from where, with the layers drawn together."""

import re


def name_table(names):
    """Returns lines `variable  <-  origin  (how many)` of {variable: origin}.

    Names that differ in the first number, that of the layer, share a line.
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
