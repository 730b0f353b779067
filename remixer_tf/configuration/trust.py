"""What the configuration in a run's folder may do: bind values, and no more.

The folder may be a stranger's. Gin's `import` runs a module, its dynamic registration
calls any function there is, and `include` brings another file with either.
"""

from remixer_tf.configuration.bindings import Binding, read_statements
from remixer_tf.errors import UserError

# Their modules may be imported: this package, and what it configures. Of t5 these are
# the tasks and their metrics: its models and scripts are programs.
_PACKAGES = ("keras", "remixer_tf", "seqio", "t5.data", "t5.evaluation")
# Whole programs among the configurables, which write where their bindings say.
_PROGRAMS = ("train", "evaluate")


def check_run_configuration(path, modules=()):
    """Checks the gin file of a run before gin reads it.

    Args:
        path: str, of the file.
        modules: names of modules that the user trusts, with all below them.

    Raises:
        UserError: it imports others, includes a file, registers dynamically, refers to
            a program, or is no gin. The message names the flags that allow it.
    """
    unknown = {}
    for statement in read_statements(path):
        if isinstance(statement, str):
            _refuse(path, f"includes {statement!r}")
        elif isinstance(statement, Binding):
            for name in statement.names:
                if name[0] == "@" and name.owner in _PROGRAMS:
                    _refuse(path, f"refers to the program {name}")
        else:
            module = statement.module
            if module.partition(".")[0] == "__gin__":
                _refuse(path, "lets gin call any function (dynamic registration)")
            known = [*_PACKAGES, *modules]
            if not any(f"{module}.".startswith(f"{name}.") for name in known):
                unknown[module] = f"--module_import={module}"
    if unknown:
        raise UserError(
            f"{path} imports {', '.join(unknown)}, and a module runs code. If you "
            f"trust it, add {' '.join(unknown.values())} (or --trust, for the whole "
            "configuration)."
        )


def _refuse(path, what):
    raise UserError(
        f"{path} {what}, which the configuration that training writes does not. If you "
        "trust whoever made the run, add --trust."
    )
