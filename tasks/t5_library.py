"""The library t5, imported when first used: many runs do not need it.

It is the only library that `pip install` of this package does not install.
"""

import functools
import importlib

import gin

from remixer_tf.errors import MissingLibraryError

MISSING = (
    "t5, which this needs, is not installed: pip install --no-deps t5==0.9.4 (with its "
    "dependencies it would overwrite tensorflow-datasets and seqio)."
)


@functools.cache
def import_t5(name):
    """Returns a module of t5's, such as "data.preprocessors".

    Raises an ImportError that says how to install t5.
    """
    try:
        with gin.unlock_config():  # t5 registers its functions, perhaps in mid-run.
            return importlib.import_module(f"t5.{name}")
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] != "t5":
            raise
        raise MissingLibraryError(MISSING) from None


def function_of_t5(module, name):
    """Returns the function `name` of t5's `module`, imported at its first call."""

    def call(*args, **kwargs):
        return getattr(import_t5(module), name)(*args, **kwargs)

    return call
