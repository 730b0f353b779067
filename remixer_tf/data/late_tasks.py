"""Tasks that are registered when an unknown name is asked for: theirs is slow."""

_waiting = []


def register_late(register):
    """Has `register()` called when a name is asked for that is not known."""
    _waiting.append(register)


def register_waiting():
    """Calls what `register_late` was given.

    Raises:
        ImportError: a library of theirs is not installed. They go on waiting.
    """
    found = bool(_waiting)
    while _waiting:
        _waiting[-1]()
        _waiting.pop()
    return found
