"""Keras layers, models and gin commands for Remixer, gMLP, T5.1.1 and their kin.

    import remixer_tf as rt

    rt.presets()                                     # the named models
    model = rt.create("remixer_small")               # a `keras.Model`, new weights
    run = rt.load("FOLDER")                          # a run, or published weights
    run.generate("the cat slept")

Importing this package imports Python's own modules alone, and names TensorFlow a folder
for compiled programs, see `remixer_tf.programs`. Each name, and each module below it,
is imported when it is first used.
"""

import importlib.util
import os
import sys

__version__ = "0.1.0"
# The module of each public name. __init__.pyi has the same for type checkers.
_HOMES = {
    "Adafactor": "optimizers",
    "CrossEntropy": "objectives.losses",
    "LoadedRun": "loaded.run",
    "Run": "run",
    "create": "loading",
    "load": "loading",
    "presets": "named_models",
}
_MODULES = ("decoding", "layers", "models", "optimizers", "testing")

# A wheel has `tasks/` and `gin/` in this folder. A checkout has them next to it, and
# uses its own, whichever checkout the environment installed.
if not os.path.isdir(os.path.join(__path__[0], "tasks")):
    __path__.append(os.path.dirname(__path__[0]))

if importlib.util.find_spec("editdistance") is None:
    sys.modules["editdistance"] = importlib.import_module(f"{__name__}.edit_distance")

importlib.import_module(f"{__name__}.programs").make_place()


def __getattr__(name):
    if name in (*_HOMES, *_MODULES):
        importlib.import_module(f"{__name__}.startup").check_keras()
        importlib.import_module(f"{__name__}.imports").import_less()
        try:
            module = importlib.import_module(f"{__name__}.{_HOMES.get(name, name)}")
        except Exception as error:
            errors = importlib.import_module(f"{__name__}.errors")
            if message := errors.too_old(error):
                raise errors.MissingLibraryError(message) from None
            raise
        return getattr(module, name) if name in _HOMES else module
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_HOMES, *_MODULES])
