"""Gin files and bindings: read, checked, called and written."""

import copy
import functools
import importlib
import itertools
import os
import pprint
import re
import sys
import types

import gin
from gin.config_parser import BindingStatement, ImportStatement, Location

from remixer_tf import console
from remixer_tf.checkpoints import paths
from remixer_tf.configuration import checks
from remixer_tf.configuration.bindings import (
    RUN_FILE,
    gin_folder,
    name_of,
    place_of,
    read_all,
    read_text,
)
from remixer_tf.configuration.configurables import PACKAGES, configurables
from remixer_tf.configuration.old_names import with_new_names
from remixer_tf.configuration.startup import load_tensorflow
from remixer_tf.errors import UserError


@functools.cache
def register_configurables():
    """Registers with gin all that it may configure.

    Returns:
        {name: what it stands for, as gin calls it with its bindings}.
    """
    importlib.import_module("remixer_tf.tasks")  # They register with seqio and gin.
    # gin sorts dictionaries when it writes them, and has no option not to; the order of
    # sublayers matters.
    pformat = functools.partial(pprint.pformat, sort_dicts=False)
    gin.config.pprint = types.SimpleNamespace(pformat=pformat)
    return {
        name: gin.external_configurable(value, name, module=module)
        for module, name, value in configurables()
    }


def parse_gin(files, bindings, search_paths=(), complete=True, modules=()):
    """Reads gin files and then bindings, in place of any configuration before.

    Args:
        files: list of paths, each absolute or below the current folder, a folder of
            `search_paths` or the package's gin folder.
        bindings: list of str, such as "Run.seed = 1".
        search_paths: list of folders.
        complete: bool, whether all that is `%gin.REQUIRED` must be set. Else it is None
            if missing: for a command that reads only the model.
        modules: names of modules to import first, as `import` lines of a file do. The
            operative configuration has these lines too.

    Raises:
        UserError: a file or module is missing or malformed, a name unknown, a value
            not set.
    """
    folders = ["", *search_paths, gin_folder()]
    nowhere = Location(None, 0, None, "")
    statements = [ImportStatement(module, False, None, nowhere) for module in modules]
    statements += with_new_names(read_all(files, bindings, folders))
    imports = [s for s in statements if isinstance(s, ImportStatement)]
    given = [s for s in statements if isinstance(s, BindingStatement)]
    final = {name_of(binding): binding for binding in given}
    checks.check_order(given)
    checks.check_read(final)
    load_tensorflow()
    register_configurables()
    gin.clear_config()
    # In a file with gin's dynamic registration names are Python's.
    dynamic = {_file(s) for s in imports if s.module.startswith("__gin__.")}
    for statement in imports:
        if not statement.module.startswith("__gin__."):
            _import(statement)
    checks.check_names([b for b in given if _file(b) not in dynamic])
    try:
        for file, group in itertools.groupby(statements, _file):
            lines = [s.format() for s in imports if _file(s) == file]
            bindings = (s for s in group if isinstance(s, BindingStatement))
            lines += [f"{name_of(s)} = {s.value!r}" for s in bindings]
            gin.parse_config(lines)
    except ValueError as error:  # what a module of the user's lets gin configure
        raise UserError(str(error).partition("\n")[0]) from None
    checks.check_values(gin.config._CONFIG, complete)
    gin.finalize()
    starts = get_value("relative_paths.folders", ["."])
    runs = [os.path.dirname(f) for f in files if f.endswith(RUN_FILE)]
    paths.start_from([os.path.join(r, start) for r in runs for start in starts])
    # The model makes these by reference alone.
    packages = (*PACKAGES, "keras.optimizers")
    parts = {name for module, name, _ in configurables() if module in packages}
    for warning in checks.check_read(final, parts):
        console.say(warning, "warning", sys.stderr)


def macros(files):
    """Returns the names of the macros that gin files of the package set, sorted."""
    statements = read_all(files, [], [gin_folder()])
    bindings = (s for s in statements if isinstance(s, BindingStatement))
    return sorted({b.selector for b in bindings if not b.arg_name})


def _file(statement):
    return statement.location.filename


def _import(statement):
    """Imports a module that gin text names."""
    try:
        importlib.import_module(statement.module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"there is no module {error.name!r}{place_of(statement)}. Modules of yours "
            "are looked for in the current folder and on Python's path (PYTHONPATH)."
        ) from None
    except ImportError as error:
        raise UserError(f"{error}{place_of(statement)}") from None


def bind_relative_paths(model_dir):
    """Has the configuration say where its relative paths start, seen from a run."""
    with gin.unlock_config():
        gin.bind_parameter("relative_paths.folders", paths.starts_seen_from(model_dir))


def is_set(parameter):
    """Returns whether the configuration gives `parameter`, such as "Run.seed"."""
    try:
        gin.query_parameter(parameter)
    except ValueError:  # Not bound.
        return False
    return True


def call(name, /, *args, **kwargs):
    """Calls the configurable `name`, with gin's values for what is not given here.

    Raises:
        UserError: a value is given neither here nor by gin.
    """
    try:
        return register_configurables()[name](*args, **kwargs)
    except TypeError as error:  # Python's own of an argument that is missing
        missing = re.match(
            r"([\w.]+?)(?:\.__init__)?\(\) missing \d+ required .*?: (.*)", str(error)
        )
        if missing is None or missing[1] not in register_configurables():
            raise
        raise UserError(
            f"{missing[1]} needs a value for {missing[2]}. Set it in a gin file, or "
            f"with --gin.{missing[1]}.PARAMETER=VALUE. (A run needs a model file and a "
            "run file, such as --gin_file=models/t5_1_1_tiny.gin "
            "--gin_file=runs/mini_cogs.gin.)"
        ) from None


def get_value(name, default=None):
    """Returns what gin binds to `name`, such as "Run.model", or `default`.

    The value is what a function would receive: macros are resolved, a `@reference` is
    the function it names, and a `@reference()` is called.
    """
    # gin resolves references when it copies them.
    return copy.deepcopy(gin.query_parameter(name)) if is_set(name) else default


def get_arguments(name):
    """Returns what gin binds to the arguments of the function that `name` is bound to.

    `name` is for example "text_to_text.decode_fn", bound to a `@reference`. The result
    is a dictionary of values as `get_value` returns them, {} if `name` is not bound.
    """
    if not is_set(name):
        return {}
    reference = gin.query_parameter(name)
    while reference.configurable.name == "macro":
        reference = gin.query_parameter(f"{reference.scoped_selector}.value")
    return gin.get_bindings(reference.scoped_selector)


def configuration_str():
    """Returns the operative configuration, after all that was given but not used.

    Evaluation reads both: it needs bindings that training never uses.
    """
    operative = gin.operative_config_str()
    headings = set(operative.splitlines()) - {"# Macros:"}
    given = gin.config_str().split("\n\n")
    unused = [block for block in given if block.partition("\n")[0] not in headings]
    first = "# Given, for other commands and scopes."
    then = "# The operative configuration of this run, with defaults."
    return "\n\n".join([first, *unused, then, operative])


def hyperparameters(text):
    """Returns the numbers and strings that gin text sets, {name: value}."""
    bindings = (s for s in read_text(text, "text") if isinstance(s, BindingStatement))
    kinds = (bool, int, float, str)  # A `Name` is none of them.
    return {name_of(b): b.value for b in bindings if type(b.value) in kinds}
