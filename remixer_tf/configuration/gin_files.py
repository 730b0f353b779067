"""Gin files and bindings: read, checked, called and written."""

import ast
import copy
import functools
import importlib
import inspect
import logging
import os
import pprint
import re
import sys
import tokenize
import types

import gin
from gin import resource_reader

from remixer_tf.checkpoints import paths
from remixer_tf.configuration.bindings import read_in_order
from remixer_tf.configuration.configurables import PACKAGES, configurables
from remixer_tf.configuration.errors import (
    UserError,
    explain,
    explain_syntax,
    missing_file,
    nearest,
    plain_message,
    unknown_parameter,
)
from remixer_tf.configuration.startup import load_tensorflow
from remixer_tf.data.late_tasks import register_waiting

RUN_FILE = "operative_config.gin"  # what training writes into a run's folder
_search_path = []  # of the configuration that is read
# What only trains, answers or draws: of a checkpoint, it changes no result.
_TRAINING = (
    "keras.optimizers.",
    "remixer_tf.analysis.",
    "remixer_tf.checkpoints.",
    "remixer_tf.data.epochs.",
    "remixer_tf.data.images.",
    "remixer_tf.data.pipeline.train_dataset",
    "remixer_tf.evaluation.best.",
    "remixer_tf.engines.",
    "remixer_tf.evaluation.evaluate.",
    "remixer_tf.objectives.",
    "remixer_tf.optimizers.",
    "remixer_tf.serving.",
    "remixer_tf.training.",
    # The settings of an evaluation have a hash of the file, wherever it lies.
    "remixer_tf.data.vocabularies.",
    "remixer_tf.data.vocabulary_training.",
)
_EVALUATION = "remixer_tf.evaluation."
_WHICH_AND_WHEN = ("batch_size", "name", "period", "splits", "tables")

# gin's reader of packages logs an error for each file that is not in one.
logging.getLogger().addFilter(lambda record: "Path not found" not in str(record.msg))


@functools.cache
def register_configurables():
    """Registers with gin all that it may configure.

    Returns:
        dict of names to what each stands for, as gin calls it: with its bindings.
    """
    importlib.import_module("remixer_tf.tasks")  # They register with seqio and gin.
    gin.config.register_finalize_hook(_check_macros)
    gin.config.register_finalize_hook(_check_parameters)
    gin.config.register_finalize_hook(_check_layers)
    gin.config.register_finalize_hook(_check_booleans)
    gin.config.register_finalize_hook(_check_brackets)
    gin.config._FILE_READERS[:] = [(_open, lambda path: True)]
    # gin sorts dictionaries when it writes them, and has no option not to; the order of
    # sublayers matters.
    pformat = functools.partial(pprint.pformat, sort_dicts=False)
    gin.config.pprint = types.SimpleNamespace(pformat=pformat)
    return {
        name: gin.external_configurable(value, name, module=module)
        for module, name, value in configurables()
    }


def gin_folder():
    """Returns the package's folder of gin files: in the wheel, else in the checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "gin")
    if os.path.isdir(installed):
        return installed
    return os.path.join(os.path.dirname(package), "gin")


def parse_gin(files, bindings, search_paths=(), complete=True, modules=()):
    """Reads gin files and then bindings, in place of any configuration before.

    Args:
        files: list of paths, each absolute or below a folder of the search path: the
            current folder, `search_paths`, the package's gin folder.
        bindings: list of str, such as "train.seed = 1".
        search_paths: list of folders.
        complete: bool, whether all that is `%gin.REQUIRED` must be set. Else it may be
            missing, and is None: for who only reads the model of a run.
        modules: names of modules to import first, as `import` lines of a file do. The
            operative configuration has such lines for them.

    Raises:
        UserError: a file or module is missing or malformed, a name unknown, a value
            not set.
    """
    _search_path[:] = ["", *search_paths, gin_folder()]
    found = _read_text(files, bindings)
    _check_read(found)
    load_tensorflow()
    register_configurables()
    gin.clear_config()
    try:
        for module in modules:
            gin.parse_config(f"import {module}")
        for file in files:
            gin.parse_config_file(file)
        for text in bindings:
            gin.parse_config(text)
        if not complete:
            required = r"^(\S+) = %gin.REQUIRED$"
            for name in re.findall(required, gin.config_str(), re.MULTILINE):
                gin.parse_config(f"{name} = None")
        gin.finalize()
        starts = get_value("relative_paths.folders", ["."])
        runs = [os.path.dirname(f) for f in files if f.endswith(RUN_FILE)]
        paths.start_from([os.path.join(r, start) for r in runs for start in starts])
    except (ValueError, OSError, ImportError) as error:
        message = explain(error, _parameters_of_all()) or plain_message(error)
        if "No configurable matching" in str(error):
            try:
                if register_waiting():
                    return parse_gin(files, bindings, search_paths, complete, modules)
            except ImportError as missing:
                message += f" If the name is one of t5's: {missing}"
        raise UserError(message) from None
    except KeyError as error:  # gin's, of ambiguous names; others are bugs
        message = explain(error, _parameters_of_all())
        if message is None:
            raise
        raise UserError(message) from None
    except RecursionError:
        raise UserError("gin: brackets or includes are nested too deep.") from None
    except UserError as error:  # gin has added where it was raised.
        raise UserError(plain_message(error)) from None
    # The model makes these by reference alone.
    packages = (*PACKAGES, "keras.optimizers")
    parts = {name for module, name, _ in configurables() if module in packages}
    for warning in _check_read(found, parts):
        print(f"warning: {warning}", file=sys.stderr)


def bind_relative_paths(model_dir):
    """Has the configuration say where its relative paths start, seen from a run."""
    with gin.unlock_config():
        gin.bind_parameter("relative_paths.folders", paths.starts_seen_from(model_dir))


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


def get_arguments(name):
    """Returns what gin binds to the arguments of the function that `name` is bound to.

    Args:
        name: str, such as "text_to_text.decode_fn", bound to a `@reference`.

    Returns:
        dictionary of the arguments, as `get_value` returns each; {} if nothing is
        bound to `name`.
    """
    try:
        reference = gin.query_parameter(name)
    except ValueError:  # Not bound.
        return {}
    while reference.configurable.name == "macro":
        reference = gin.query_parameter(f"{reference.scoped_selector}.value")
    return gin.get_bindings(reference.scoped_selector)


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


def evaluation_bindings(caller):
    """Returns all bindings that may change what an evaluation computes.

    These are all but those of training alone: of functions in `_TRAINING`, and of
    parameters that say which results there are, and when. Macros are written out. A
    binding that says what holds without it is left out: the configuration that training
    wrote spells defaults.

    Args:
        caller: "train" or "evaluate", whose `model` is evaluated.

    Returns:
        dictionary of bindings to their values as text.
    """
    config = gin.config._CONFIG
    found = {}
    for (scope, selector), bindings in config.items():
        if selector == "gin.macro":
            continue
        for name, value in bindings.items():
            if f"{selector}.{name}".endswith(f".{caller}.model"):
                found["model"] = _text(value)
            left_out = name in _WHICH_AND_WHEN if _EVALUATION in selector else False
            if left_out or selector.startswith(_TRAINING):
                continue
            value = _text(value)
            if "/" in scope or value != _text(_without(scope, selector, name)):
                found[f"{scope}/{selector}.{name}"] = value
    return found


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


def _read_text(files, bindings):
    """Reads what files and bindings say, before anything slow is imported.

    Returns:
        {name: (value as text, file, None for a binding)}.

    Raises:
        UserError: a file is missing or malformed, or the files of a run come before
            those of its model.
    """
    found, text = {}, None

    def read(text):
        for name, value, file in read_in_order(text, _open):
            _, of_run = found.get("train.dataset", (None, file))
            if name == "train.model" and name not in found and of_run != file:
                raise UserError(
                    f"{file} says what the model is, and comes after a file that says "
                    "how it is trained, whose VOCAB_SIZE and others it would set back. "
                    "Name the model's file first."
                )
            found[name] = value, file

    try:
        for path in files:
            with _open(path) as file:
                read(file)
        for text in bindings:
            read(text)
    except (SyntaxError, tokenize.TokenError) as error:
        raise UserError(explain_syntax(error, text)) from None
    except (ValueError, TypeError, OSError) as error:  # bytes; a key such as [1]
        raise UserError(plain_message(error)) from None
    return found


def _check_read(found, parts=frozenset()):
    """Raises if the command line sets what nothing reads.

    Args:
        found: what `_read_text` returns.
        parts: names of what is made where a @reference names it, and not else.

    Returns:
        list of messages, of what the user's own files set and nothing reads.
    """
    values = {}  # of each macro and configurable
    for name, (value, _) in found.items():
        values.setdefault(_owner(name), []).append(value)
    macros = {name for name in found if _owner(name) == name}
    read, new = set(), values.keys() - macros - parts
    while new:
        read |= new
        text = " ".join(value for owner in new for value in values.get(owner, ()))
        # One in quotes is meant to be read too; who receives it says that it is not.
        new = set(re.findall(r"(?:[@%](?:\w+[/.])*|')(\w+)", text)) - read
    warnings = []
    for name, (_, file) in found.items():
        if _owner(name) in read:
            continue
        if file is None:
            raise UserError(f"--gin.{name} sets {_unread(name, found, read)}")
        ours = os.path.abspath(file).startswith(gin_folder() + os.sep)
        if name in macros and not ours and os.path.basename(file) != RUN_FILE:
            warnings.append(f"{file} sets {name}, {_unread(name, found, read)}")
    return warnings


def _unread(name, found, read):
    """Says of a macro or parameter why nothing reads it, and what is read instead."""
    owner = _owner(name)
    if owner != name:
        return f"what nothing reads: the configuration has no @{owner}."
    uses = [n for n, (value, _) in found.items() if re.search(rf"%{name}\b", value)]
    if not uses:
        used = {m for value, _ in found.values() for m in re.findall(r"%(\w+)", value)}
        return f"a macro that nothing uses.{nearest(name, used)}"
    parameter = uses[0].rpartition(".")[2]
    instead = [
        f" It has {n} = {value}."
        for n, (value, _) in found.items()
        if n.endswith(f".{parameter}") and _owner(n) in read
    ]
    return (
        f"what nothing reads: it is the value of {uses[0]}, and the configuration has "
        f"no @{_owner(uses[0])}.{''.join(instead[:1])}"
    )


def _owner(name):
    """`Name` of "a/module.Name.parameter"; a macro itself."""
    selector = name.rpartition(".")[0] if "." in name.rpartition("/")[2] else name
    return re.split(r"[/.]", selector)[-1]


def _open(path):
    """Opens a gin file of the search path, or of a package, as gin's own reader has it.

    Raises:
        UserError: it is nowhere.
    """
    for folder in _search_path:
        if os.path.isfile(found := os.path.join(folder, path)):
            return open(found, encoding="utf-8")
    try:
        if resource_reader.system_path_file_exists(path):
            return resource_reader.system_path_reader(path)
    except TypeError:  # It fails at any other folder here, such as one called models.
        pass
    raise UserError(missing_file(path, _search_path))


def _check_macros(config):
    """A finalize hook: checks that no macro stands for itself, perhaps by others."""
    uses = {
        key: {part.config_key for part in gin.config.iterate_references(bindings)}
        for key, bindings in config.items()
        if key[1] == "gin.macro"
    }
    for macro in uses:
        seen, new = set(), {macro}
        while new:
            new = {used for key in new for used in uses.get(key, ())} - seen
            seen |= new
        if macro in seen:
            raise UserError(f"the macro {macro[0]} stands for itself. Give it a value.")


def _check_parameters(config):
    """A finalize hook: checks the parameters of classes that take **kwargs.

    gin accepts every name for them, and Keras reports only the innermost call.
    """
    ours = _parameters_of_all()
    for (_, selector), bindings in config.items():
        name = selector.rpartition(".")[2]
        if name not in ours and not _is_layer(gin.get_configurable(selector)):
            continue
        part = gin.get_configurable(selector)
        known = sorted(_parameters(part))
        for parameter in bindings:
            if new := getattr(part, "moved", {}).get(parameter):
                raise UserError(f"{name}.{parameter} has a new name: {new}.")
            if parameter not in known:
                raise UserError(unknown_parameter(name, parameter, known))


def _check_booleans(config):
    """A finalize hook: checks that what is True or False by default is one of them.

    Python would take any other value for one of the two, as 'no' for True.
    """
    for (_, selector), bindings in config.items():
        function = gin.get_configurable(selector)
        booleans = {
            name
            for name, parameter in _parameters(function).items()
            if isinstance(parameter.default, bool)
        }
        for name in booleans.intersection(bindings):
            value = _without_macros(bindings[name], config)
            if not isinstance(value, (bool, gin.config.ConfigurableReference)):
                name = f"{selector.rpartition('.')[2]}.{name}"
                raise UserError(
                    f"{name} must be True or False. Received: {name}={value!r}"
                )


def _text(value):
    """A value as text in which macros are written out."""
    if isinstance(value, dict):
        pairs = (f"{_text(name)}: {_text(item)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    if repr(value).startswith("%"):
        macro = gin.config._CONFIG.get((repr(value)[1:], "gin.macro"), {})
        return _text(macro.get("value"))
    return repr(value)


def _without(scope, selector, parameter):
    """What a parameter is where the binding of a scope does not say it."""
    if scope:
        bindings = gin.config._CONFIG.get(("", selector), {})
        if parameter in bindings:
            return bindings[parameter]
    found = _parameters(gin.get_configurable(selector)).get(parameter)
    return None if found is None else found.default


def _without_macros(value, config):
    """What a macro stands for; a value that is none, or not set, as it is."""
    while repr(value).startswith("%"):
        macro = config.get((repr(value)[1:], "gin.macro"))
        if macro is None:
            break
        value = macro["value"]
    return value


def _check_brackets(config):
    """A finalize hook: checks that what is used as it is made is made."""
    import keras  # late, as all that is slow to import

    schedule = keras.optimizers.schedules.LearningRateSchedule
    for reference in gin.config.iterate_references(config):
        part = reference.configurable
        needs = part.name in ("CrossEntropy", "InitialCheckpoint") or (
            inspect.isclass(part.wrapped) and issubclass(part.wrapped, schedule)
        )
        if needs and not reference.evaluate:
            raise UserError(
                f"@{part.name} is written with brackets where it is used: "
                f"@{part.name}()"
            )


def _check_layers(config):
    """A finalize hook: checks that layers are registered in a way that Keras bears.

    `@gin.configurable` puts its own `__init__` into the class, and Keras reads the
    names of the arguments from it.
    """
    for reference in gin.config.iterate_references(config):
        part = reference.configurable
        if _is_layer(part.wrapped) and part.wrapper is part.wrapped:
            raise UserError(
                f"{part.name} is a Keras layer with @gin.configurable, which Keras "
                f"cannot build. Write @gin.register above the class in {part.module}."
            )


def _is_layer(value):
    import keras  # late, as all that is slow to import

    return inspect.isclass(value) and issubclass(value, keras.layers.Layer)


@functools.cache
def _parameters_of_all():
    """Returns {name: sorted parameters} of all of ours that gin may configure."""
    return {name: sorted(_parameters(value)) for _, name, value in configurables()}


def _parameters(function):
    """Returns {name: parameter}, of a class with those of its base classes."""
    functions = [function]
    if inspect.isclass(function):
        functions = [
            vars(base)["__init__"]
            for base in reversed(function.__mro__[:-1])
            if "__init__" in vars(base)
        ]
    return {
        parameter.name: parameter
        for function in functions
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name != "self"
    }
