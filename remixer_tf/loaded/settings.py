"""The configuration of a loaded run."""

import contextlib

import gin

from remixer_tf import configuration
from remixer_tf.checkpoints import paths
from remixer_tf.loaded.inputs import check_listed


class Settings:
    """A configuration of its own for each loaded run.

    `read(bindings)` reads the configuration, and then gin bindings, a list of str.
    """

    def __init__(self, read, bindings=()):
        check_listed(bindings=bindings)
        self._read, self._bindings = read, [*bindings]
        with kept_gin():
            read(self._bindings)
            self._text = configuration.configuration_str(defaults=False)
            self._paths = paths.starts(), paths.run_being_read()

    def and_bindings(self, bindings):
        """Returns the same settings with more bindings after their own."""
        return Settings(self._read, [*self._bindings, *bindings])

    @contextlib.contextmanager
    def in_force(self):
        """Puts the settings in force: in a block, or in calls of what it decorates."""
        with kept_gin():
            gin.clear_config()
            gin.parse_config(self._text)
            paths.start_from(*self._paths)
            yield


@contextlib.contextmanager
def kept_gin():
    """Puts gin's configuration back as it was, when the block ends."""
    text = configuration.configuration_str(defaults=False)
    locked = gin.config_is_locked()
    starts = paths.starts(), paths.run_being_read()
    try:
        yield
    finally:
        gin.clear_config()
        gin.parse_config(text)
        if locked:
            gin.finalize()
        paths.start_from(*starts)
