"""Gin files and bindings, read into a `Configuration`."""

import importlib
import os
import sys
import tempfile
import threading

import gin
from gin.config_parser import BindingStatement, ImportStatement, Location

from remixer_tf import console
from remixer_tf.checkpoints import paths, versions
from remixer_tf.configuration import checks, parts
from remixer_tf.configuration.bindings import (
    RUN_FILE,
    final_bindings,
    folders_of_gin,
    gin_folder,
    place_of,
    read_all,
    read_text,
)
from remixer_tf.configuration.configurables import PACKAGES, configurables
from remixer_tf.configuration.old_names import with_new_names
from remixer_tf.configuration.values import MACRO, Configuration, whole
from remixer_tf.errors import UserError
from remixer_tf.startup import load_tensorflow, set_up_keras

# Gin's lock of its configuration, which an import undoes, is of all threads.
_IMPORTING = threading.RLock()


def read(files, bindings, search_paths=(), complete=True, modules=(), run=None):
    """Reads gin files and then bindings.

    Nothing process-wide changes, but for what modules do that are imported. Raises a
    UserError for what is missing, malformed, unknown or not set, and for the
    configuration of a run that a newer version wrote.

    Args:
        files: list of paths: absolute, or below the current folder, a folder of
            `search_paths`, or the package's gin folder.
        bindings: list of str, such as "Run.seed = 1".
        complete: bool, whether each value that is `%gin.REQUIRED` must be set, and each
            argument without a default of what a @reference names. If not, a missing
            value is None, for a command that reads only the model.
        modules: names of modules to import first, as `import` lines of a file do.
        run: folder of the run that is read and not trained, or None.

    Returns:
        a `Configuration`.
    """
    nowhere = Location(None, 0, None, "")
    statements = [ImportStatement(module, False, None, nowhere) for module in modules]
    folders = folders_of_gin(search_paths)
    statements += with_new_names(read_all(files, bindings, folders))
    runs = [os.path.dirname(file) for file in files if file.endswith(RUN_FILE)]
    configuration = _configuration(statements, complete, runs)
    configuration.set_paths(_starts(runs, configuration, run), run)
    return configuration


def read_again(text, starts):
    """Returns the `Configuration` whose `text` and `starts` these are.

    So a worker, perhaps on another machine, reads what a command has read.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, RUN_FILE)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        configuration = read([path], [], complete=False)
    configuration.set_paths(starts)
    return configuration


def _configuration(statements, complete, runs=()):
    """Returns the `Configuration` of statements, where relative paths start here.

    `runs` are the folders of runs that wrote some of them.
    """
    imports = [s for s in statements if isinstance(s, ImportStatement)]
    checks.check_order(s for s in statements if isinstance(s, BindingStatement))
    final = final_bindings(statements)
    checks.check_read(final)
    load_tensorflow()
    set_up_keras()
    for run in runs:
        versions.check_run_version(run)
    parts.register_configurables()
    for statement in imports:
        _import(statement)
    checks.check_names(final)

    def again(bindings):
        more = with_new_names(read_all([], bindings, []))
        return _configuration([*statements, *more], complete)

    lines = [statement.format() for statement in imports]
    configuration = Configuration(_values(final), lines, again)
    checks.check_references(configuration)
    # The model makes these by reference alone.
    packages = (*PACKAGES, "keras.optimizers")
    made = {name for module, name, _ in configurables() if module in packages}
    for warning in checks.check_read(final, made):
        console.say(warning, "warning", sys.stderr)
    checks.check_values(configuration, complete)
    if complete:
        checks.check_arguments(configuration)
    return configuration


def _values(final):
    """Returns {(scope, whole name): {parameter: value}}, as in `Configuration`."""
    found = {}
    for binding in final.values():
        value, place = whole(binding.value, place_of(binding)), place_of(binding)
        if binding.arg_name:
            selector = parts.find(binding.selector, place).selector
            found.setdefault((binding.scope, selector), {})[binding.arg_name] = value
        else:
            name = f"{binding.scope}/{binding.selector}".strip("/")
            found[name, MACRO] = {"value": value}
    return found


def _starts(runs, configuration, run):
    """Returns the folders where relative paths of the configuration start."""
    starts = configuration.value(paths.relative_paths, "folders", ["."])
    found = [os.path.join(folder, start) for folder in runs for start in starts]
    return [run, *found] if run else found


def _import(statement):
    """Imports a module that gin text names."""
    if not all(map(str.isidentifier, statement.module.split("."))):
        raise UserError(
            f"{statement.module!r}{place_of(statement)} is no name of a module, such "
            "as 'package.module'."
        )
    before = gin.config_str()
    try:
        # Modules of users' register parts of theirs.
        with _IMPORTING, gin.unlock_config():
            importlib.import_module(statement.module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"there is no module {error.name!r}{place_of(statement)}. Modules of yours "
            "are looked for in the current folder and on Python's path (PYTHONPATH)."
        ) from None
    except ImportError as error:
        raise UserError(f"{error}{place_of(statement)}") from None
    if gin.config_str() != before:
        raise UserError(
            f"the module {statement.module!r}{place_of(statement)} sets values in gin "
            "when it is imported, which no configuration has. Write them in a gin file."
        )


def macros(files):
    """Returns the names of the macros that gin files of the package set, sorted."""
    final = final_bindings(read_all(files, [], [gin_folder()]))
    return sorted(name for name, binding in final.items() if not binding.arg_name)


def hyperparameters(text):
    """Returns the numbers and strings that gin text sets, {name: value}."""
    final = final_bindings(read_text(text, "text"))
    kinds = (bool, int, float, str)  # A `Name` is none of them.
    return {name: b.value for name, b in final.items() if type(b.value) in kinds}


def put_into_gin(configuration):
    """Makes a configuration gin's own, for a command: a process has one.

    A user's `@gin.configurable` function that is called, and not referenced, finds its
    values there.
    """
    gin.clear_config()
    gin.parse_config(configuration.text(defaults=False))
    for name, value in configuration.located_bindings():
        gin.bind_parameter(name, value)
    gin.finalize()
