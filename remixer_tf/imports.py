"""Has TensorFlow, Keras and seqio import less, and later.

They import JAX, TensorFlow Datasets, SciPy, matplotlib and scikit-learn where these are
installed. Answering needs none of them (docs/results/start_up.md has what that saves).
"""

import collections.abc
import contextlib
import functools
import importlib.abc
import importlib.machinery
import sys
import threading
import types

from remixer_tf import startup

# Modules that are imported when a name of theirs is first read.
_LATER = {"keras.src.visualization", "keras.visualization", "keras.wrappers"}
# {library: importers}. An importer finds no such library while it is imported, if Keras
# runs on TensorFlow. TensorFlow then lacks `TFLiteConverter.experimental_from_jax`, and
# Keras repairs no old JAX. SciPy serves a Keras of TensorFlow's own that nobody uses.
_WITHOUT = {"jax": {"tensorflow", "keras"}, "scipy": {"tensorflow"}}
# The same on any engine. A program may give Keras its tables, and no command does.
_COMMANDS_WITHOUT = {"pandas": {"keras"}}

# seqio's modules whose names are its own too, in its order, and those that come later.
_SEQIO = ("dataset_providers", "feature_converters", "utils", "vocabularies")
_SEQIO_LATER = (
    "evaluation",
    "experimental",
    "helpers",
    "loggers",
    "metrics",
    "test_utils",
)
# Modules that seqio needs when its functions are called, and the names that it mentions
# while it is imported, as annotations and defaults.
_FOR_SEQIO = {
    "clu": {},
    "clu.metrics": {},
    "pyglove": {},
    "seqio.metrics": {"MetricFnCallable": collections.abc.Callable},
    "tensorflow_datasets": {
        "Split": types.SimpleNamespace(TRAIN="train"),
        "core": types.SimpleNamespace(DatasetBuilder=object),
    },
}


def import_less(of_command=False):
    """Has TensorFlow, Keras and seqio import less, if they are not imported yet.

    `of_command`, bool, says that the process runs a command, and no code of others that
    may use all of Keras.
    """
    finder = next((x for x in sys.meta_path if isinstance(x, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    if of_command:
        finder.without = _WITHOUT | _COMMANDS_WITHOUT


def import_rest(metrics=True):
    """Imports what seqio's tasks are read and evaluated with, before threads do.

    `metrics`, bool, says whether they are evaluated. seqio's metrics import JAX, which
    takes 110 MB.

    While TensorFlow Datasets is imported, imports of other threads may fail: it puts a
    function of its own in place of Python's `__import__`.
    """
    importlib.import_module("tensorflow_datasets")
    if metrics:
        importlib.import_module("seqio.metrics")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self):
        self.without = _WITHOUT

    def find_spec(self, name, path=None, target=None):
        importers = filter(_is_being_imported, self.without.get(name, ()))
        if importer := next(importers, None):
            if name not in _WITHOUT or startup.check_keras() == "tensorflow":
                message = f"{importer} does without {name}"
                raise ModuleNotFoundError(message, name=name)
        if name not in _LATER and name != "seqio":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            kind = _SeqioLoader if name == "seqio" else _LateLoader
            spec.loader = kind(spec.loader)
        return spec


def _is_being_imported(name):
    module = sys.modules.get(name)
    return module is not None and module.__spec__._initializing


class _Loader(importlib.abc.Loader):
    """Loads a module in another way than its own loader."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader


class _LateLoader(_Loader):
    """Runs a module's code when a name of it is first read.

    The standard library's LazyLoader does so at any attribute, also at those that
    `inspect` reads of all modules.
    """

    def exec_module(self, module):
        super().exec_module(module)
        self._lock, self._runs = threading.RLock(), False
        module.__getattr__ = self._late = functools.partial(self._read, module)

    def _read(self, module, name):
        with self._lock:
            if self._runs:  # The code itself asks for a name that it lacks.
                raise _no_name(module, name)
            if vars(module).get("__getattr__") is self._late:
                self._runs = True
                try:
                    self._loader.exec_module(module)
                finally:
                    self._runs = False
                if vars(module).get("__getattr__") is self._late:
                    del module.__getattr__
        return getattr(module, name)


class _SeqioLoader(_Loader):
    """Imports seqio without its metrics and evaluation, which come when used."""

    def exec_module(self, module):
        super().exec_module(module)
        with _stand_ins():
            for part in _SEQIO:
                names = vars(importlib.import_module(f"seqio.{part}"))
                vars(module).update({k: x for k, x in names.items() if k[0] != "_"})
            importlib.import_module("seqio.preprocessors")
            module.__version__ = importlib.import_module("seqio.version").__version__
        module.__getattr__ = functools.partial(_read_seqio, module)


def _read_seqio(module, name):
    """Returns what seqio has besides `_SEQIO`: a module, or a name of two others."""
    if name in _SEQIO_LATER:
        return importlib.import_module(f"seqio.{name}")
    if name[0] != "_":
        home = "evaluation" if name == "Evaluator" else "loggers"
        names = vars(importlib.import_module(f"seqio.{home}"))
        if name in names:
            return names[name]
    raise _no_name(module, name)


def _no_name(module, name):
    return AttributeError(f"module {module.__name__!r} has no attribute {name!r}")


@contextlib.contextmanager
def _stand_ins():
    """Has others stand for the modules of `_FOR_SEQIO` during a block."""
    made = {name: _StandIn(name) for name in _FOR_SEQIO if name not in sys.modules}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]


class _StandIn(types.ModuleType):
    """Imports the module of its name when a name there is read."""

    def __getattr__(self, name):
        if (below := f"{self.__name__}.{name}") in _FOR_SEQIO:
            return importlib.import_module(below)
        if sys.modules.get(self.__name__) is not self:
            return getattr(importlib.import_module(self.__name__), name)
        if name in (given := _FOR_SEQIO[self.__name__]):
            return given[name]
        raise _no_name(self, name)
