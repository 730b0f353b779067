"""Tasks that are registered only when an unknown name is asked for, as that is slow."""

_waiting = []
register_late = _waiting.append  # Takes a function that registers tasks.


def register_waiting():
    """Calls the functions of `register_late`; returns whether there were any.

    If one raises an ImportError, it can be called again.
    """
    found = bool(_waiting)
    while _waiting:
        _waiting[-1]()
        _waiting.pop()
    return found
