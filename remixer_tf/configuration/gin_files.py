"""Gin files and bindings: read, checked, called and written."""

import ast
import copy
import functools
import inspect
import logging
import os
import pprint
import re
import tokenize
import types

import gin

from remixer_tf.configuration.configurables import CONFIGURABLES, DATA_FOLDERS, load
from remixer_tf.configuration.errors import (
    UserError,
    explain,
    explain_syntax,
    nearest,
    unknown_parameter,
)


@functools.cache
def register_configurables():
    """Registers with gin all that it may configure.

    Returns:
      dict of names to what each stands for, as gin calls it: with its bindings.
    """
    gin.config.register_finalize_hook(_check_parameters)
    # gin logs an error for each folder where an included file is not.
    logging.getLogger().addFilter(
        lambda record: "Path not found" not in str(record.msg)
    )
    # gin sorts dictionaries when it writes them; the order of sublayers matters.
    pformat = functools.partial(pprint.pformat, sort_dicts=False)
    gin.config.pprint = types.SimpleNamespace(pformat=pformat)
    return {
        name: gin.external_configurable(load(module, name), name, module=module)
        for module, names in CONFIGURABLES.items()
        for name in names
    }


def gin_folder():
    """Returns the package's folder of gin files: in the wheel, else in the checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "gin")
    if os.path.isdir(installed):
        return installed
    return os.path.join(os.path.dirname(package), "gin")


def parse_gin(files, bindings, search_paths=(), complete=True):
    """Reads gin files and then bindings, in place of any configuration before.

    Args:
      files: list of paths, each absolute or below a folder of the search path: the
        current folder, `search_paths`, the package's gin folder.
      bindings: list of str, such as "train.seed = 1".
      search_paths: list of folders.
      complete: bool, whether all that is `%gin.REQUIRED` must be set. Else it may be
        missing, and is None: for who only reads the model of a run.

    Raises:
      UserError: a file is missing or malformed, a name unknown, a value not set.
    """
    register_configurables()
    gin.clear_config()
    folders = ["", *search_paths, gin_folder()]
    # gin has no function that sets its search path, only one that adds to it.
    gin.config._LOCATION_PREFIXES[:] = folders
    text = None
    try:
        for file in files:
            gin.parse_config_file(file)
        in_files = gin.config_str()
        for text in bindings:
            gin.parse_config(text)
        _check_macros(bindings, in_files)
        if not complete:
            required = r"^(\S+) = %gin.REQUIRED$"
            for name in re.findall(required, gin.config_str(), re.MULTILINE):
                gin.parse_config(f"{name} = None")
        gin.finalize()
    except (SyntaxError, tokenize.TokenError) as error:
        raise UserError(explain_syntax(error, text)) from None
    except (ValueError, OSError, ImportError) as error:
        message = explain(error, _parameters_of_all(), folders)
        raise UserError(message or str(error)) from None
    for name in DATA_FOLDERS:
        call(name)


def is_set(parameter):
    """Returns whether the configuration gives `parameter`, such as "train.seed"."""
    return f"\n{parameter} =" in gin.config_str()


def call(name, /, *args, **kwargs):
    """Calls the configurable `name`, with gin's values for what is not given here.

    Raises:
      UserError: a value is given neither here nor by gin.
    """
    try:
        return register_configurables()[name](*args, **kwargs)
    except (TypeError, RuntimeError) as error:
        if message := explain(error, _parameters_of_all()):
            raise UserError(message) from None
        raise


def get_value(name, default=None):
    """Returns what gin binds to `name`, such as "train.model", or `default`.

    As a function that is called with the binding receives it: macros resolved, a
    `@reference` as the function it names, a `@reference()` called.
    """
    try:
        value = gin.query_parameter(name)
    except ValueError:  # Not bound.
        return default
    return copy.deepcopy(value)  # gin resolves references in copies.


def configuration_str():
    """Returns the operative configuration, and before it what was given but not used.

    Evaluation reads it and needs bindings that training never uses. Read in order, the
    operative values prevail.
    """
    operative = gin.operative_config_str()
    headings = set(operative.splitlines()) - {"# Macros:"}
    given = gin.config_str().split("\n\n")
    unused = [block for block in given if block.partition("\n")[0] not in headings]
    return (
        "# Given, for other binaries and scopes.\n\n"
        + "\n\n".join(unused)
        + "\n\n# The operative configuration of this run, with defaults.\n\n"
        + operative
    )


def hyperparameters(text):
    """Returns the numbers and strings that gin text sets, {name: value}."""
    values = {}
    for name, value in re.findall(r"^(\S+) = (.*)$", text, re.MULTILINE):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            continue  # a reference, a macro, or the first line of several
        if isinstance(value, (bool, int, float, str)):
            values[name] = value
    return values


def _check_macros(bindings, in_files):
    """Raises if a macro of the command line is used nowhere: a misspelling."""
    known = set(re.findall(r"%(\w+)", gin.config_str()))
    known |= set(re.findall(r"^(\w+) =", in_files, re.MULTILINE))
    for binding in bindings:
        name = binding.partition("=")[0].strip()
        if re.fullmatch(r"\w+", name) and name not in known:
            raise UserError(
                f"--gin.{name} sets a macro that nothing uses.{nearest(name, known)}"
            )


def _check_parameters(config):
    """A finalize hook: checks the parameters of classes that take **kwargs.

    gin accepts every name for them, and Keras reports only the innermost call.
    """
    known = _parameters_of_all()
    for (_, selector), bindings in config.items():
        name = selector.rpartition(".")[2]
        for parameter in bindings if name in known else ():
            if parameter not in known[name]:
                raise UserError(unknown_parameter(name, parameter, known[name]))


@functools.cache
def _parameters_of_all():
    """Returns {name: sorted parameters} of all configurables."""
    result = {}
    for module, names in CONFIGURABLES.items():
        for name in names:
            result[name] = sorted(_parameters(load(module, name)))
    return result


def _parameters(function):
    """Returns the parameters' names, those of a class's base classes too."""
    functions = [function]
    if inspect.isclass(function):
        functions = [
            vars(base)["__init__"]
            for base in function.__mro__[:-1]
            if "__init__" in vars(base)
        ]
    return {
        parameter.name
        for function in functions
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name != "self"
    }
