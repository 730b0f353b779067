"""Looking inside layers: what they compute on the way, for whoever asks."""

import contextlib
import contextvars

_watcher = contextvars.ContextVar("watcher", default=None)


@contextlib.contextmanager
def watching(watcher):
    """Calls `watcher(layer, name, value)` for all that layers tell inside the block.

    They tell what pictures need, and return the same as ever: attention weights as
    "attention", float32 `[batch, heads, target, source]`; the matrix of static mixing
    as "mixing", float32 `[heads, target, source]`; Remixer's alpha as "alpha". Call
    the model eagerly: inside a traced function values would be symbolic.
    """
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def tell(layer, name, value):
    """Tells the watcher, if there is one, what `layer` has computed.

    `value` may be a function without arguments, called only for a watcher.
    """
    watcher = _watcher.get()
    if watcher is not None:
        watcher(layer, name, value() if callable(value) else value)
