"""Imports run one way: no module imports one that stands above it.

Up to the optimizers, only Keras and NumPy may be imported, so that everything runs on
TensorFlow and on JAX. gin is for configuration and the commands; the folders of the
tasks' data register with it what it may set.
"""

import ast
import graphlib
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent

# Each group may import from itself (without cycles) and from the groups before it.
ORDER = [
    ["arguments", "command_line", "console", "errors", "programs", "waiting"],
    ["kernels"],
    ["layers"],
    ["objectives"],
    ["models"],
    ["decoding", "optimizers"],
    [
        *["checkpoints", "data", "edit_distance", "imports", "pipelines", "startup"],
        *["tables", "tasks", "testing"],
    ],
    ["engines"],
    ["training"],
    ["evaluation", "serving", "weights"],
    ["run"],
    ["analysis"],
    ["configuration"],
    ["configured", "exporting"],
    ["loaded", "loading", "named_models"],
    ["server"],
    ["commands"],
    ["__main__"],
]
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}
KERAS_ONLY = {part for part, rank in RANK.items() if rank <= RANK["optimizers"]}
USES_GIN = {part for part, rank in RANK.items() if rank >= RANK["configuration"]}
USES_GIN.add("tasks")
ON_JAX = (
    "remixer_tf.engines.jax.",
    "remixer_tf.checkpoints.sharded",
    "remixer_tf.kernels.linear_operation",
    "remixer_tf.kernels.recompute",
    "remixer_tf.testing.programs",
)
# A user's tf.data.Dataset is TensorFlow's on either backend.
ON_TENSORFLOW = ("remixer_tf.models.streams",)
BACKEND_FREE = {"keras", "numpy", "remixer_tf"} | sys.stdlib_module_names

# The tasks use no more of this package than these; they share modules of their own.
FOR_TASKS = (
    "remixer_tf.tasks",
    "remixer_tf.arguments",
    "remixer_tf.errors",
    "remixer_tf.checkpoints.paths",
    "remixer_tf.checkpoints.whole_folder",
    "remixer_tf.programs",
    "remixer_tf.__version__",
    "remixer_tf.data.classification",
    "remixer_tf.data.codec",
    "remixer_tf.data.failures",
    "remixer_tf.data.file_states",
    "remixer_tf.data.late_tasks",
    "remixer_tf.data.masked_lm",
    "remixer_tf.data.numbered_files",
    "remixer_tf.data.spans",
    "remixer_tf.data.vocabularies",
)


def module_name(path):
    """`tasks/cogs.py` -> `remixer_tf.tasks.cogs`; a package's name ends in __init__."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "remixer_tf" else ("remixer_tf", *parts))


def imported_names(module, source):
    """Yields every dotted name imported anywhere in `source`, lazily or not."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".")[: -node.level]
                base = ".".join([*package, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            function = ast.unparse(node.func).rsplit(".", 1)[-1]
            argument = node.args[0]
            if function in ("import_module", "__import__", "LazyLoader"):
                if isinstance(argument, ast.Constant):
                    yield str(argument.value)


def part_of(name):
    """`remixer_tf.layers.base.Context` -> `layers`; None outside the package."""
    pieces = name.split(".")
    return pieces[1] if pieces[0] == "remixer_tf" and len(pieces) > 1 else None


def violations(module, source):
    """The mistakes in the imports of one module, as sentences."""
    part = part_of(module)
    names = sorted(set(imported_names(module, source)))
    if part == "__init__":
        more = [n for n in names if n.split(".")[0] not in sys.stdlib_module_names]
        return [f"{module} must import no library, it imports {name}" for name in more]
    if part not in RANK:
        return [f"{module} has no place in the order: add {part!r} to ORDER"]
    found = []
    for name in names:
        library, target = name.split(".")[0], part_of(name)
        on_jax = library == "jax" and module.startswith(ON_JAX)
        allowed = library in BACKEND_FREE or on_jax
        allowed |= library == "tensorflow" and module.startswith(ON_TENSORFLOW)
        if part in KERAS_ONLY and not allowed:
            found.append(f"{module} may use keras and numpy only, it imports {name}")
        elif library == "jax" and not on_jax:
            found.append(f"{module} imports jax: only {' and '.join(ON_JAX)} may")
        elif library == "gin" and part not in USES_GIN:
            found.append(
                f"{module} imports gin: only tasks, configuration and commands may"
            )
        elif target and RANK.get(target, -1) > RANK[part]:
            found.append(f"{module} imports {name}, which stands above it")
        elif target and part == "tasks" and not name.startswith(FOR_TASKS):
            found.append(f"{module} imports {name}: tasks use preprocessors only")
    return found


def cycle(sources):
    """The parts on an import cycle, or None. `sources`: module name -> source."""
    graph = {}
    for module, source in sources.items():
        targets = {part_of(name) for name in imported_names(module, source)}
        graph.setdefault(part_of(module), set()).update(targets & set(RANK))
    graph = {part: targets - {part} for part, targets in graph.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


def modules():
    paths = [*ROOT.glob("remixer_tf/**/*.py"), *ROOT.glob("tasks/**/*.py")]
    return {module_name(path): path.read_text(encoding="utf-8") for path in paths}


def imported_with(name, sources):
    """All that is imported with a name of ours, lazily or not."""
    found, left = set(), [name]
    while left:
        pieces = left.pop().split(".")
        # Its packages are imported too, and it may be a module's function.
        names = [".".join(pieces[:i]) for i in range(1, len(pieces) + 1)]
        for module in {*names, *(f"{name}.__init__" for name in names)} - found:
            found.add(module)
            left += imported_names(module, sources.get(module, ""))
    return found


def test_the_step_on_jax_needs_no_tensorflow():
    """So that `benchmarks.accelerator` runs where TensorFlow is not."""
    sources = modules()
    for path in ROOT.glob("benchmarks/accelerator*.py"):
        sources[f"benchmarks.{path.stem}"] = path.read_text(encoding="utf-8")
    for module in ON_TENSORFLOW:  # They import it when a user gives them a Dataset.
        del sources[module]
    found = imported_with("benchmarks.accelerator", sources)
    assert {"remixer_tf.engines.jax.step", "remixer_tf.layers.base", "jax"} <= found
    assert not found & {"tensorflow", "seqio", "t5"}
    assert "tensorflow" in imported_with("remixer_tf.engines.jax.engine", sources)


def test_an_engine_knows_no_other_engine():
    paths = ROOT.glob("remixer_tf/engines/*/engine.py")
    folders = {f"remixer_tf.engines.{path.parent.name}." for path in paths}
    assert len(folders) > 1
    for module, source in modules().items():
        for own in filter(module.startswith, folders):
            others = tuple(folders - {own})
            names = imported_names(module, source)
            assert not [name for name in names if name.startswith(others)], module


def test_imports_run_one_way():
    sources = modules()
    assert {"remixer_tf.layers.base", "remixer_tf.tasks.__init__"} <= set(sources)
    wrong = [violations(module, source) for module, source in sources.items()]
    assert not any(wrong), "\n".join(sum(wrong, []))
    assert cycle(sources) is None


def test_t5_is_imported_by_those_alone_who_use_it():
    """`pip install` of the wheel brings no t5."""
    sources = modules()
    users = {
        module
        for module, source in sources.items()
        if "t5" in {name.split(".")[0] for name in imported_names(module, source)}
    }
    assert not users, "use remixer_tf.tasks.t5_library"
    of_t5 = {f"remixer_tf.tasks.{name}" for name in ("t5_tasks", "glue_classes")}
    assert not of_t5 & imported_with("remixer_tf.tasks", sources)


@pytest.mark.parametrize(
    "module, source, problem",
    [
        ("layers.base", "from remixer_tf.models import stack", "stands above"),
        ("layers.base", "from remixer_tf import models", "stands above"),
        ("layers.base", "from ..models import stack", "stands above"),
        ("layers.__init__", "from ..models.stack import Block", "stands above"),
        ("objectives.losses", "import remixer_tf.training.loop", "stands above"),
        ("training.loop", "from remixer_tf import configuration", "stands above"),
        ("layers.base", "import tensorflow as tf", "keras and numpy only"),
        ("decoding.greedy", "def f():\n  import tensorflow", "keras and numpy only"),
        (
            "objectives.summaries",
            "import importlib\nimportlib.import_module('jax')",
            "keras and",
        ),
        ("optimizers.adafactor", "from tensorflow import math", "keras and numpy only"),
        ("models.stack", "import gin", "keras and numpy only"),
        ("training.loop", "import gin.tf", "imports gin"),
        ("training.loop", "from jax import lax", "imports jax"),
        ("tasks.cogs", "from remixer_tf.data import pipeline", "preprocessors only"),
        ("helpers", "import keras", "no place in the order"),
        ("__init__", "import keras", "must import no library"),
    ],
)
def test_a_wrong_import_is_found(module, source, problem):
    (sentence,) = violations(f"remixer_tf.{module}", source)
    assert problem in sentence


@pytest.mark.parametrize(
    "module, source",
    [
        ("layers.base", "import math\nimport keras\nfrom keras import ops"),
        ("layers.base", "from . import normalization"),
        ("layers.__init__", "from .base import Context"),
        ("decoding.greedy", "from ..models import stack"),
        ("training.loop", "import tensorflow\nfrom remixer_tf import objectives, data"),
        ("tasks.cogs", "from remixer_tf.data.vocabularies import byte_vocabulary"),
        ("commands.train", "import gin\nfrom remixer_tf import configuration"),
    ],
)
def test_a_right_import_passes(module, source):
    assert violations(f"remixer_tf.{module}", source) == []


def test_a_cycle_between_neighbours_is_found():
    sources = {
        "remixer_tf.data.pipeline": "from remixer_tf import evaluation",
        "remixer_tf.evaluation": "from remixer_tf.data import pipeline",
    }
    assert set(cycle(sources)) == {"data", "evaluation"}
