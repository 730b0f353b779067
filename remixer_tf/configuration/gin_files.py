"""Gin files and bindings: read, checked, called and written."""

import copy
import functools
import importlib
import os
import re
import sys

import gin
from gin.config_parser import BindingStatement, ImportStatement, Location

from remixer_tf import console
from remixer_tf.checkpoints import paths, versions
from remixer_tf.configuration import checks
from remixer_tf.configuration.bindings import (
    RUN_FILE,
    final_bindings,
    gin_folder,
    literal,
    place_of,
    read_all,
    read_text,
)
from remixer_tf.configuration.configurables import PACKAGES, configurables
from remixer_tf.configuration.old_names import with_new_names
from remixer_tf.configuration.result_bindings import evaluation_bindings
from remixer_tf.errors import UserError
from remixer_tf.startup import load_tensorflow, set_up_keras


@functools.cache
def register_configurables():
    """Registers with gin all that it may configure.

    Returns {name: what it stands for, as gin calls it with its bindings}.
    """
    importlib.import_module("remixer_tf.tasks")  # They register with seqio and gin.
    return {
        name: gin.external_configurable(value, name, module=module)
        for module, name, value in configurables()
    }


def parse_gin(files, bindings, search_paths=(), complete=True, modules=()):
    """Reads gin files and then bindings, in place of any configuration before.

    Raises a UserError for what is missing, malformed, unknown or not set, and for the
    configuration of a run that a newer version wrote.

    Args:
        files: list of paths: absolute, or below the current folder, a folder of
            `search_paths`, or the package's gin folder.
        bindings: list of str, such as "Run.seed = 1".
        complete: bool, whether each value that is `%gin.REQUIRED` must be set, and each
            argument without a default of what a @reference names. If not, a missing
            value is None, for a command that reads only the model.
        modules: names of modules to import first, as `import` lines of a file do.
    """
    nowhere = Location(None, 0, None, "")
    statements = [ImportStatement(module, False, None, nowhere) for module in modules]
    folders = ["", *search_paths, gin_folder()]
    statements += with_new_names(read_all(files, bindings, folders))
    imports = [s for s in statements if isinstance(s, ImportStatement)]
    checks.check_order(s for s in statements if isinstance(s, BindingStatement))
    final = final_bindings(statements)
    checks.check_read(final)
    load_tensorflow()
    set_up_keras()
    runs = [os.path.dirname(f) for f in files if f.endswith(RUN_FILE)]
    for run in runs:
        versions.check_run_version(run)
    register_configurables()
    gin.clear_config()
    for statement in imports:
        _import(statement)
    checks.check_names(final)
    lines = [statement.format() for statement in imports]
    lines += [f"{name} = {literal(binding.value)}" for name, binding in final.items()]
    try:
        gin.parse_config(lines)
    except ValueError as error:  # what a module of the user's lets gin configure
        raise UserError(str(error).partition("\n")[0]) from None
    checks.check_references(gin.config._CONFIG)
    # The model makes these by reference alone.
    packages = (*PACKAGES, "keras.optimizers")
    parts = {name for module, name, _ in configurables() if module in packages}
    for warning in checks.check_read(final, parts):
        console.say(warning, "warning", sys.stderr)
    checks.check_values(gin.config._CONFIG, complete)
    if complete:
        checks.check_arguments(gin.config._CONFIG)
    gin.finalize()
    starts = get_value("relative_paths.folders", ["."])
    paths.start_from([os.path.join(r, start) for r in runs for start in starts])


def macros(files):
    """Returns the names of the macros that gin files of the package set, sorted."""
    final = final_bindings(read_all(files, [], [gin_folder()]))
    return sorted(name for name, binding in final.items() if not binding.arg_name)


def _import(statement):
    """Imports a module that gin text names."""
    if not all(map(str.isidentifier, statement.module.split("."))):
        raise UserError(
            f"{statement.module!r}{place_of(statement)} is no name of a module, such "
            "as 'package.module'."
        )
    try:
        importlib.import_module(statement.module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"there is no module {error.name!r}{place_of(statement)}. Modules of yours "
            "are looked for in the current folder and on Python's path (PYTHONPATH)."
        ) from None
    except ImportError as error:
        raise UserError(f"{error}{place_of(statement)}") from None


def is_set(parameter):
    """Returns whether the configuration gives `parameter`, such as "Run.seed"."""
    try:
        gin.query_parameter(parameter)
    except ValueError:  # Not bound.
        return False
    return True


def call(name, /, *args, **kwargs):
    """Calls the configurable `name`, with gin's values for what is not given here.

    Raises a UserError if a value is given neither here nor by gin.
    """
    try:
        return register_configurables()[name](*args, **kwargs)
    except TypeError as error:  # Python's own of an argument that is missing
        missing = re.match(r"(\w+)(?:\.__init__)?\(\) missing .*?: (.*)", str(error))
        if missing is None or missing[1] not in register_configurables():
            raise
        raise UserError(
            f"{missing[1]} needs a value for {missing[2]}. Set it in a gin file, or "
            f"with --gin.{missing[1]}.PARAMETER=VALUE. {checks.TWO_FILES}"
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
    reference = checks.without_macros(gin.query_parameter(name))
    return gin.get_bindings(reference.scoped_selector)


def configuration_str(defaults=True):
    """Returns the configuration as gin text, which first says this version.

    gin's own writer sorts dictionaries. The order of sublayers matters. With
    `defaults`, default arguments of called functions are written too, so that another
    version of this package reads the same.
    """
    config = dict(gin.config._CONFIG)
    if defaults:
        for key, values in gin.config._OPERATIVE_CONFIG.items():
            config[key] = values | config.get(key, {})
    imports = sorted({statement.format() for statement in gin.config._IMPORTS})
    macros, blocks = [], {}
    for (scope, selector), values in config.items():
        lines = [
            f"{checks.written(scope, selector, parameter)} = {literal(value)}"
            for parameter, value in sorted(values.items())
            if _can_be_read(value)
        ]
        if selector == "gin.macro":
            macros += lines
        else:
            blocks[checks.written("", selector).lower(), scope] = lines
    first = [versions.HEADER], imports, sorted(macros)
    blocks = [*first, *(blocks[key] for key in sorted(blocks))]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def _can_be_read(value):
    """Whether gin reads a value's text as the value, not so of most objects."""
    try:
        return gin.config.parse_value(literal(value)) == value
    except SyntaxError:
        return False


def bind_relative_paths(model_dir):
    """Has the configuration say where its relative paths start, seen from a run."""
    with gin.unlock_config():
        gin.bind_parameter("relative_paths.folders", paths.starts_seen_from(model_dir))


def configured_layout():
    """Returns the `Layout` that gin gives the `JaxEngine`."""
    from remixer_tf.engines.jax.layout import Layout

    names = ("mesh_shape", "layout_rules")
    return Layout(**{name: get_value(f"JaxEngine.{name}", "") for name in names})


def train(model_dir, **options):
    """Calls `training.loop.train` with what gin sets; the options are `Launch`'s."""
    from remixer_tf.training.settings import Launch

    def configuration():
        bind_relative_paths(model_dir)
        text = configuration_str()
        return text, hyperparameters(text)

    run, bindings = call("Run"), evaluation_bindings()
    options["watching"] = call("Watching")
    launch = Launch(model_dir, configuration, bindings, **options)
    names = ("Schedule", "Checkpointing", "Objective")
    settings = {name.lower(): call(name) for name in names}
    return call("train", run, launch, **settings)


def hyperparameters(text):
    """Returns the numbers and strings that gin text sets, {name: value}."""
    final = final_bindings(read_text(text, "text"))
    kinds = (bool, int, float, str)  # A `Name` is none of them.
    return {name: b.value for name, b in final.items() if type(b.value) in kinds}
