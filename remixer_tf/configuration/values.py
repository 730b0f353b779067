"""A configuration as a value: what gin text says, resolved where a part is called."""

import contextlib
import contextvars
import copy
import functools
import itertools

import gin

from remixer_tf.arguments import TheRun
from remixer_tf.checkpoints import versions
from remixer_tf.checkpoints.paths import (
    Located,
    located,
    relative_paths,
    starts_seen_from,
)
from remixer_tf.configuration import parts
from remixer_tf.configuration.bindings import (
    Name,
    literal,
    name_of,
    names_in,
    read_text,
)
from remixer_tf.errors import UserError

_FOLDERS = "remixer_tf.tasks.folders."  # Each `DataFolder` is a part with this start.
_RUN = "remixer_tf.run.Run"
# The configurations whose `Run` a thread makes, for an argument that is the run.
_making = contextvars.ContextVar("making", default=())
MACRO = "gin.macro"  # The binding of a macro is ("NAME", MACRO): {"value": ...}.
TWO_FILES = (
    "(A run needs a model file and a run file, such as "
    "--gin_file=models/t5_1_1_tiny.gin --gin_file=runs/mini_cogs.gin.)"
)


class Bound:
    """A part with a configuration's values for the arguments its caller leaves out.

    A @reference of gin text becomes one, `Run.model` for instance. It has the name,
    docstring and signature of the function or class `__wrapped__`.

    Attributes:
        configuration: the `Configuration`.
        scope: str, as of "@a/Name"; "" for none. Its values come before those of no
            scope.
    """

    def __init__(self, configuration, selector, scope=""):
        self.configuration, self.scope = configuration, scope
        self._key, self._entry = (scope, selector), parts.find(selector)
        functools.update_wrapper(self, self._entry.wrapped, updated=())

    def __getattr__(self, name):  # of the function or class
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __call__(self, *args, **kwargs):
        part = self.__wrapped__
        kwargs = {k: x for k, x in kwargs.items() if x is not gin.REQUIRED}
        names = parts.places(part)[: len(args)]
        values = self.configuration.written(*self._key)
        left = {k: x for k, x in values.items() if k not in kwargs and k not in names}
        runs = self._runs({*names, *kwargs, *left})
        given = {*names, *kwargs, *runs}
        if missing := [k for k in parts.needed(part) if k not in {*given, *left}]:
            raise UserError(
                f"{self.__name__} needs a value for {_listed(missing)}. Set it in a "
                f"gin file, or with --gin.{self.__name__}.PARAMETER=VALUE. {TWO_FILES}"
            )
        self.configuration.note_defaults(self._key, self._entry, {*given, *left})
        left = self._resolved(left) | runs
        with self._mistakes():
            if not self.scope:
                return part(*args, **left, **kwargs)
            # A user's @gin.configurable that the part calls finds the scope's values.
            with gin.config_scope(self.scope.split("/")):
                return part(*args, **left, **kwargs)

    @contextlib.contextmanager
    def _mistakes(self):
        """Raises what Keras' own part says of its arguments as a UserError."""
        try:
            yield
        except (TypeError, ValueError) as error:
            if self.__wrapped__.__module__.partition(".")[0] != "keras":
                raise
            said = " ".join(str(error).split())
            raise UserError(f"{self.__name__} (of Keras): {said}") from error

    def arguments(self):
        """Returns what the configuration binds to the part's arguments."""
        return self._resolved(self.configuration.written(*self._key))

    def _resolved(self, values):
        found = {}
        for name, value in values.items():
            found[name] = self.configuration.resolve(value, self.scope)
            if parts.declares(self.__wrapped__, name, Located):
                found[name] = self.configuration.located(found[name])
        return found

    def _runs(self, given):
        """Returns the configuration's run, for arguments that are `TheRun`."""
        part = self.__wrapped__
        return {
            name: self._run(name)
            for name in parts.accepted(part)
            if name not in given and parts.declares(part, name, TheRun)
        }

    def _run(self, name):
        making = _making.get()
        if self.configuration in making:
            raise UserError(
                f"values refer to each other in a circle: {self.__name__}.{name} is "
                f"the run, and a value of the run uses @{self.__name__}(). Give one of "
                "them another value."
            )
        token = _making.set((*making, self.configuration))
        try:
            return Bound(self.configuration, _RUN)()
        finally:
            _making.reset(token)

    def __instancecheck__(self, value):
        return isinstance(value, self.__wrapped__)

    def __subclasscheck__(self, subclass):
        return issubclass(subclass, self.__wrapped__)

    def __eq__(self, other):
        same = isinstance(other, Bound) and self._key == other._key
        return same and self.configuration is other.configuration

    def __hash__(self):
        return hash(self._key)

    def __repr__(self):
        return f"@{name_of((*self._key, ''))}"


class Configuration:
    """What gin files and bindings say.

    Parts get their values from it when they are called, and nothing of it is
    process-wide. Threads may use several, and one together.

    Args:
        bindings: {(scope, whole name of a part): {parameter: value}}. In a value each
            @reference and %macro is a `Name`.
        imports: list of str, the `import` lines.
        again: a function of a list of bindings, which reads the configuration once
            more, with these bindings after its own.
    """

    def __init__(self, bindings, imports=(), again=None):
        self.bindings, self.imports = bindings, [*imports]
        self._again = again
        self.starts, self.run = [], None
        self._defaults = {}  # {key as of bindings: the defaults that calls took}

    def set_paths(self, starts, run=None):
        """Sets the folders where relative paths start, besides the current one.

        `run` is the folder of a run that is read and not trained, or None.
        """
        self.starts, self.run = [*starts], run

    def bound(self, part, scope=""):
        """Returns a part of this package with the configuration's values."""
        return Bound(self, parts.register_configurables()[part], scope)

    def call(self, part, /, *args, **kwargs):
        """Calls a part of this package, with these values for what is left out.

        Raises a UserError if an argument has a value neither here nor there.
        """
        return self.bound(part)(*args, **kwargs)

    def value(self, part, parameter, default=None):
        """Returns what a parameter of a part would receive, or `default`.

        A @reference is a `Bound`, and what a @reference() makes is made.
        """
        values = self.written("", parts.register_configurables()[part])
        return self.resolve(values[parameter]) if parameter in values else default

    def is_set(self, part, parameter):
        """Whether a parameter of a part has a value."""
        return parameter in self.written("", parts.register_configurables()[part])

    def data_folders(self):
        """Returns {"NAME.directory": path}: the folders of data that it names."""
        return {
            f"{selector.removeprefix(_FOLDERS)}.directory": folder
            for scope, selector in self.bindings
            if selector.startswith(_FOLDERS) and not scope
            if (folder := Bound(self, selector).arguments().get("directory"))
        }

    def of_called_parts(self):
        """Returns the names of bindings that gin alone gives, to parts that are called.

        They are of parts of users and libraries that no @reference names.
        """
        keys = [key for key in self.bindings if not key[1].startswith("remixer_tf.")]
        used = (key for own in self.bindings for _, key in self.used_by(*own))
        named = {MACRO, *(selector for _, selector in used)}
        return sorted(
            written(*key, parameter)
            for key in keys
            if key[1] not in named
            for parameter in self.bindings[key]
        )

    def and_bindings(self, bindings):
        """Returns this configuration with more bindings, texts, after its own."""
        more = self._again(bindings)
        more.set_paths(self.starts, self.run)
        return more

    def written(self, scope, selector):
        """Returns {parameter: value as written} of a part; inner scopes prevail."""
        inner = itertools.accumulate(filter(None, scope.split("/")), "{}/{}".format)
        found = {}
        for each in ["", *inner]:
            found |= self.bindings.get((each, selector), {})
        return found

    def resolve(self, value, scope="", called=None):
        """Returns what a value as written stands for.

        A @reference without a scope has the `scope` of the part whose value it is. In a
        macro's value, @references() without one have the macro's name, `called`.
        """
        if isinstance(value, Name):
            return self._named(value, scope, scope if called is None else called)
        if isinstance(value, dict):
            pairs = value.items()
            return {
                self.resolve(k, scope, called): self.resolve(x, scope, called)
                for k, x in pairs
            }
        if isinstance(value, (list, tuple)):
            return type(value)(self.resolve(x, scope, called) for x in value)
        return value

    def _named(self, name, scope, called):
        if name[0] == "%":
            key = name[1:], MACRO
            if key not in self.bindings:
                return copy.deepcopy(_constant(name))
            return self.resolve(self.bindings[key]["value"], scope, name[1:])
        inner, _, selector = name.removesuffix("()")[1:].rpartition("/")
        if not name.endswith("()"):
            return Bound(self, selector, inner or scope)
        return Bound(self, selector, inner or called)()

    def keys_of(self, value, scope=""):
        """Yields (name, key as of `bindings`) of each name in a value as written.

        `scope` is that of the part whose value it is. Constants of users are left out.
        """
        for name in names_in(value):
            if name[0] == "%":
                key = name[1:], MACRO
                if key in self.bindings or not _constant(name):
                    yield name, key
            else:
                inner, _, selector = name.removesuffix("()")[1:].rpartition("/")
                yield name, (inner or scope, selector)

    def used_by(self, scope, selector):
        """Yields what `keys_of` does, of all values of a part or macro."""
        macro = selector == MACRO
        key = scope, selector
        values = self.bindings[key] if macro else self.written(*key)
        for value in values.values():
            yield from self.keys_of(value, scope)

    def without_macros(self, value):
        """Returns a value with what they stand for in place of the macros in it."""
        if isinstance(value, dict):
            return {key: self.without_macros(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [*map(self.without_macros, value)]
        if isinstance(value, Name) and (value[1:], MACRO) in self.bindings:
            return self.without_macros(self.bindings[value[1:], MACRO]["value"])
        return value

    def note_defaults(self, key, entry, given):
        """Notes that a part was called with its defaults but for `given`."""
        taken = {
            name: parameter.default
            for name, parameter in parts.own_parameters(entry.wrapped).items()
            if parameter.default is not parameter.empty and name not in given
            if parts.may_be_bound(entry, name)
        }
        self._defaults.setdefault(key, {}).update(taken)

    def apart(self):
        """Returns the same; what is called by it is not in the text of this one."""
        other = copy.copy(self)
        other._defaults = {key: {**taken} for key, taken in self._defaults.items()}
        return other

    def located(self, value):
        """Returns the paths in a value, found from where relative ones start."""
        return located(value, self.starts, self.run)

    def located_bindings(self):
        """Yields (name as gin has it, value) of the parameters that are `Located`."""
        for (scope, selector), values in self.bindings.items():
            if selector == MACRO:
                continue
            wrapped = parts.find(selector).wrapped
            for name, value in values.items():
                if parts.declares(wrapped, name, Located):
                    found = self.located(self.resolve(value, scope))
                    yield name_of((scope, selector, name)), found

    def seen_from(self, model_dir):
        """Returns the same, whose text says where its relative paths start.

        The folders are seen from the folder of a run, so that all can move together.
        """
        seen = copy.copy(self)  # It goes on to note the defaults of both.
        key = "", parts.register_configurables()[relative_paths]
        folders = starts_seen_from(model_dir, self.starts)
        seen.bindings = self.bindings | {key: {"folders": folders}}
        return seen

    def text(self, defaults=True):
        """Returns the configuration as gin text, which first says this version.

        With `defaults`, default arguments of called parts are written too, so that
        another version of this package reads the same.
        """
        config = {key: {**values} for key, values in self.bindings.items()}
        if defaults:
            for key, values in [*self._defaults.items()]:
                own = self.written(*key)  # as gin's own operative text
                config[key] = {**values, **own} | config.get(key, {})
        macros, blocks = [], {}
        for (scope, selector), values in config.items():
            lines = [
                f"{written(scope, selector, parameter)} = {literal(shown(value))}"
                for parameter, value in sorted(values.items())
                if _can_be_read(value)
            ]
            if selector == MACRO:
                macros += lines
            else:
                blocks[written("", selector).lower(), scope] = lines
        first = [versions.HEADER], sorted({*self.imports}), sorted(macros)
        blocks = [*first, *(blocks[key] for key in sorted(blocks))]
        return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def written(scope, selector, parameter=""):
    """Returns "a/Name.parameter", or the name of a macro, as gin text has it."""
    if selector == MACRO:
        return scope
    return name_of((scope, parts.shortest(selector), parameter))


def _listed(names):
    """Returns "'a', 'b'"."""
    return ", ".join(map(repr, names))


def _constant(name):
    """Returns gin's reference to a user's `gin.constant`, None if there is none."""
    reference = gin.config.ParserDelegate().macro(name[1:])
    return reference if reference.selector == "gin.constant" else None


def shown(value):
    """Returns a value with the shortest names of parts in its @references."""
    return _renamed(value, parts.shortest)


def whole(value, place=""):
    """Returns a value with the whole names of parts in its @references."""
    return _renamed(value, lambda name: parts.find(name, place).selector)


def _renamed(value, rename):
    """Returns a value in which `rename` gave each @reference's part another name."""
    if isinstance(value, dict):
        pairs = value.items()
        return {_renamed(k, rename): _renamed(x, rename) for k, x in pairs}
    if isinstance(value, (list, tuple)):
        return type(value)(_renamed(x, rename) for x in value)
    if isinstance(value, Name) and value[0] == "@":
        scope, slash, name = value.removesuffix("()")[1:].rpartition("/")
        brackets = "()" * value.endswith("()")
        return Name(f"@{scope}{slash}{rename(name)}{brackets}")
    return value


def _can_be_read(value):
    """Whether gin reads a value's text as the value, not so of most objects."""
    try:
        (statement,) = read_text(f"A = {literal(value)}", "a value")
    except UserError:
        return False
    return statement.value == value
