"""Parses the command line of a command, without what reads gin."""

import argparse
import ast
import re

from remixer_tf.errors import UserError, check_paths, nearest


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UserError(f"{message}. --help lists all options.")


def parse_command_line(arguments, description, add_arguments, program=None):
    """Returns the `argparse.Namespace` of a command line.

    `arguments` is a list of str without the program's name, `add_arguments` a function
    that adds all options to an `ArgumentParser`. --help says `description` first, and
    names `program`, None for the file's name. A command that has the option
    --gin.NAME=VALUE gets all such arguments as the list `gin_bindings`. If --beam is
    given, options that the command does not know are the list `beam_arguments`.
    """
    parser = _Parser(program, "%(prog)s [options]", description, allow_abbrev=False)
    add_arguments(parser)
    takes_gin = "--gin.NAME=VALUE" in parser._option_string_actions
    takes_beam = "--beam" in parser._option_string_actions
    own, bindings, of_beam = [], [], []
    for argument in arguments:
        if takes_gin and argument.startswith("--gin."):
            bindings.append(_to_binding(argument))
        elif takes_beam and "--beam" in arguments and _is_unknown(argument, parser):
            of_beam.append(argument)
        else:
            _check_known(argument, parser._option_string_actions)
            own.append(argument)
    options = parser.parse_args(own)
    if takes_gin and isinstance(options.model_dir, str):
        check_paths(model_dir=options.model_dir)
    if takes_gin:
        options.gin_bindings = bindings
    if takes_beam:
        options.beam_arguments = of_beam
    return options


def _is_unknown(argument, parser):
    name = argument.partition("=")[0]
    return name.startswith("--") and name not in parser._option_string_actions


def _check_known(argument, known):
    """Raises a UserError for an unknown option.

    It comes before argparse, which would only name what is required.
    """
    name, _, value = argument.partition("=")
    if not name.startswith("--") or name in known:
        return
    if "--gin.NAME=VALUE" in known and re.fullmatch("--gin_(param|binding)s?", name):
        name, _, value = (part.strip() for part in value.strip("'\"").partition("="))
        meant = f"--gin.{name or 'NAME'}={value or 'VALUE'}"
        raise UserError(f"unknown argument {argument!r}. Did you mean {meant}")
    flags = [flag for flag in known if "NAME" not in flag]
    of_beam = " Options of Apache Beam need --beam." * ("--beam" in known)
    raise UserError(
        f"unknown argument {argument!r}.{nearest(argument, flags)}{of_beam} --help "
        "lists all."
    )


def _to_binding(argument):
    """Turns '--gin.NAME=VALUE' into 'NAME = VALUE'."""
    name, equals, value = (part.strip() for part in argument.partition("="))
    if not equals:
        raise UserError(f"{name} has no value. Expected: {name}=VALUE")
    return f"{name.removeprefix('--gin.')} = {_to_value(value)}"


def _to_value(text):
    """Returns a value as gin text: a word or a path that is no literal is a string."""
    try:
        ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        if re.fullmatch(r"[^\s'\"%@()\[\]{}=]+", text):
            return repr(text)
    return text
