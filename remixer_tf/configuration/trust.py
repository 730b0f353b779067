"""The configuration in a run's folder may bind values, and do no more.

The folder may be a stranger's. Gin's `import` runs a module, and `include` reads a file
that may do so.
"""

from gin.config_parser import BindingStatement, IncludeStatement

from remixer_tf.configuration.bindings import last, names_in, read_statements
from remixer_tf.errors import UserError

# Modules of these packages may be imported. t5's models and scripts are programs; its
# tasks and metrics are not.
_PACKAGES = ("keras", "remixer_tf", "seqio", "t5.data", "t5.evaluation")
# Configurables that are programs: they write where their bindings say.
_PROGRAMS = ("train", "evaluate")


def check_run_configuration(path, modules=()):
    """Checks the gin file of a run, at `path`, before gin reads it.

    Raises a UserError if it imports modules other than ours and `modules`, names that
    the user trusts with all below them; if it includes a file, refers to a program, or
    is no gin. The message names the flags that allow it.
    """
    known = tuple(f"{name}." for name in (*_PACKAGES, *modules))
    unknown = {}
    for statement in read_statements(path):
        if isinstance(statement, IncludeStatement):
            _refuse(path, f"includes {statement.filename!r}")
        elif isinstance(statement, BindingStatement):
            for name in names_in(statement.value):
                if name[0] == "@" and last(name) in _PROGRAMS:
                    _refuse(path, f"refers to the program {name}")
        elif not f"{statement.module}.".startswith(known):
            unknown[statement.module] = f"--module_import={statement.module}"
    if unknown:
        raise UserError(
            f"{path} imports {', '.join(unknown)}, and a module runs code. If you "
            f"trust it, add {' '.join(unknown.values())} (or --trust, for the whole "
            f"configuration). In Python: modules={list(unknown)} (or trust=True)."
        )


def _refuse(path, what):
    raise UserError(
        f"{path} {what}, which the configuration that training writes does not. If you "
        "trust whoever made the run, add --trust."
    )
