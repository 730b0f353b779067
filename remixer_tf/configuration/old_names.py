"""Names that gin knew before: a run's own file may have them, a user's may not.

Runs are read that were written on 2026-11-22 or later. Runs of gMLP, aMLP and sMLP are
read from 2026-11-25 on. Earlier gates were no layers of their own.
"""

import os

from gin.config_parser import BindingStatement

from remixer_tf.configuration.bindings import (
    RUN_FILE,
    Name,
    last,
    names_in,
    place_of,
)
from remixer_tf.errors import UserError

# Old owners of parameters, the parameters, and their owner now.
_MOVED = (
    ("train evaluate evaluate_images text_to_text text_scorer text_encoder "
     "image_to_class",
     "model dtype_policy engine task vocabulary feature_lengths seed", "Run"),
    ("DecodedEvaluation LossEvaluation Pictures ScoredEvaluation", "vocabulary", "Run"),
    ("train", "train_steps steps_per_call log_period checkpoint_period "
     "examples_per_epoch", "Schedule"),
    ("train", "jit_compile strategy", "TensorFlowEngine"),
    ("train", "z_loss label_smoothing", "CrossEntropy"),
    ("evaluate", "batch_size decode_fn feature_converter max_examples splits",
     "DecodedEvaluation"),
    ("evaluate_images", "evaluations", "evaluate"),
    ("train", "keep_period best restart_data_at", "Checkpointing"),
    ("train", "loss_fn auxiliary_loss_weights micro_batches clip_norm "
     "max_skipped_steps", "Objective"),
    ("beam_search greedy_decode sample",
     "min_length allowed no_repeat_ngram_size repetition_penalty", "AnswerLimits"),
    ("sample", "temperature top_k top_p", "Sampling"),
    ("table_task", "columns fractions header on_bad_rows seed", "TableRows"),
    ("train_dataset", "batch_size feature_converter length_buckets pack shuffle",
     "Batching"),
    ("train_dataset", "count_limit", "LongExamples"),
    ("GatedMLP", "variant toeplitz spatial_stddev spatial_bias_value norm_epsilon",
     "SpatialGatingUnit"),
)  # fmt: skip
# The argument by which the old owner now takes the new one.
_ARGUMENTS = {
    "AnswerLimits": "limits",
    "Batching": "batching",
    "LongExamples": "long_examples",
    "Sampling": "sampling",
    "TableRows": "rows",
}
# Removed parameters. All runs now do what each did with this value.
_ANY = object()
_REMOVED = {
    "Adafactor.epsilon_1": 1e-30,
    "Adafactor.unscaled_variables": (),
    "GShardRouter.second_policy": "random",
    "HashRouter.counts": None,
    "JaxEngine.compilation_cache_dir": _ANY,
    "LengthMixing.renormalize": True,
    "MoE.dispatch": _ANY,
    "RemixerBlock.renormalize": True,
    "TransformerStack.survival_schedule": "linear",
}
_FOLDER_OF_TABLES = "tsv_files.directory"
# The new name of each old name; None for a removed one.
NEW_NAMES = {
    **{
        f"{owner}.{parameter}": f"{new}.{parameter}"
        for owners, parameters, new in _MOVED
        for owner in owners.split()
        for parameter in parameters.split()
    },
    "text_to_text.max_decode_length": "text_to_text.max_length",
    "DecodedEvaluation.max_decode_length": "DecodedEvaluation.max_length",
    "evaluate.max_decode_length": "DecodedEvaluation.max_length",
    "train.keep_checkpoints": "Checkpointing.keep",
    "train.initial_checkpoint": "Checkpointing.initial",
    "train_dataset.over_length": "LongExamples.handling",
    "RemixerBlock.width": "RemixerBlock.d_ff",
    "SpatialGatingUnit.num_heads": "SpatialGatingUnit.num_mixing_heads",
    "LengthMixing.num_heads": "LengthMixing.num_mixing_heads",
    "GatedMLP.num_heads": "SpatialGatingUnit.num_mixing_heads",
    "GatedMLP.d_attention": "TinyAttention.d_kv (GatedMLP.attention = @TinyAttention)",
    "GatedMLP.attention_dropout_rate": "TinyAttention.dropout_rate",
    **dict.fromkeys(_REMOVED),
}


def with_new_names(statements):
    """Yields the statements of a configuration, with new names for old ones.

    Where several old names have become one, the last value counts, which is that of
    training. Raises a UserError if a file that training did not write, or the command
    line, has an old name.
    """
    yield from _with_run([*_moved(_with_tables(statements))])


def _moved(statements):
    """Yields statements with new names for old ones."""
    for statement in statements:
        old = ""
        if isinstance(statement, BindingStatement):
            old = f"{last(statement.selector)}.{statement.arg_name}"
            _check_gates(statement, old)
        if old in NEW_NAMES:
            yield from _renamed(statement, old, NEW_NAMES[old])
        else:
            yield statement


def _is_of_run(binding):
    return (binding.location.filename or "").endswith(RUN_FILE)


def _check_gates(binding, old):
    """Raises a UserError if a run has gates that were no layers of their own."""
    function = old.split(".")[0]
    gates = function == "GatedMLP" and old in NEW_NAMES
    names = [function, *map(last, names_in(binding.value))]
    if _is_of_run(binding) and (gates or "SparseGatedMLP" in names):
        raise UserError(
            "this run of gMLP, aMLP or sMLP was written before 2026-11-25, when gates "
            f"were no layers of their own{place_of(binding)}. It is not read. Read it "
            "by the version that wrote it, or train anew."
        )


def _with_tables(statements):
    """Yields statements with @table_task() for a run's task 'tsv_files'.

    Until 2026-11-22 it read train.tsv, validation.tsv and test.tsv of a folder.
    """
    folder, task = os.environ.get("REMIXER_TF_TSV_DIR", "."), None
    for statement in statements:
        if not (isinstance(statement, BindingStatement) and _is_of_run(statement)):
            yield statement
        elif f"{last(statement.selector)}.{statement.arg_name}" == _FOLDER_OF_TABLES:
            folder = statement.value or folder
        elif statement.value == "tsv_files":
            task = statement._replace(value=Name("@table_task()"))
            yield task
        else:
            yield statement
    if task is None:
        return
    files = {
        split: os.path.join(folder, f"{split}.tsv{end}")
        for split in ("train", "validation", "test")
        for end in (".gz", "")
        if os.path.exists(os.path.join(folder, f"{split}.tsv{end}"))
    }
    settings = {
        "table_task.name": "tsv_files",
        "table_task.files": files or {"train": os.path.join(folder, "train.tsv")},
        "table_task.inputs": "{0}",
        "table_task.targets": "{1}",
        "table_task.rows": Name("@TableRows()"),
        "table_task.shuffle_buffer_size": 10_000,
        "TableRows.header": False,
    }
    for name, value in settings.items():
        owner, parameter = name.split(".")
        yield task._replace(scope="", selector=owner, arg_name=parameter, value=value)


# Until 2026-11-27 these were bound to get_task and to macros. Now they have the run's
# own arguments.
_HAVE_THE_RUN = {
    f"{owner}.{parameter}": argument
    for owners, parameter, argument in (
        ("train_dataset vocabulary_size LossEvaluation DecodedEvaluation "
         "ScoredEvaluation Pictures steps_in_epochs examples_per_epoch "
         "allowed_answers", "task", "task"),
        ("allowed_answers", "vocabulary", "vocabulary"),
        ("train_dataset", "feature_lengths", "feature_lengths"),
    )
    for owner in owners.split()
}  # fmt: skip


def _with_run(statements):
    """Yields statements in which datasets and evaluations have the run's task.

    Files of earlier runs bind @get_task() and @Run() there. Raises a UserError if
    another file, or the command line, names get_task.
    """
    told = {}  # {(scope, parameter): value} of get_task
    run = {}  # {parameter: value} of `Run`
    chosen = set()  # {(scope, owner)} of tasks that a file names itself
    bindings = [x for x in statements if isinstance(x, BindingStatement) and x.arg_name]
    for binding in bindings:
        owner = last(binding.selector)
        if not _is_of_run(binding):
            _refuse_get_task(binding, owner)
        elif owner == "get_task":
            told[binding.scope, binding.arg_name] = binding.value
        elif owner == "Run" and not binding.scope:
            run[binding.arg_name] = binding.value
        elif binding.arg_name == "task" and not _asks_get_task(binding.value):
            chosen.add((binding.scope, owner))
    for statement in statements:
        if isinstance(statement, BindingStatement) and _is_of_run(statement):
            yield from _of_the_run(statement, told, run, chosen)
        else:
            yield statement


def _refuse_get_task(binding, owner):
    place, parameter = place_of(binding), binding.arg_name
    if owner == "get_task":
        new = _argument_of_run(parameter)
        raise UserError(f"get_task.{parameter} is Run.{new} now{place}.")
    if "get_task" in map(last, names_in(binding.value)):
        raise UserError(
            f"@get_task() is no longer there{place}: what reads data has the run's "
            f"task. Leave it out, or name a task, as {owner}.{parameter} = 'NAME'."
        )


def _asks_get_task(value):
    return isinstance(value, Name) and last(value) == "get_task"


def _argument_of_run(parameter):
    """Returns the name that `Run` has for a parameter of get_task."""
    return "task" if parameter == "name" else parameter


def _of_the_run(binding, told, run, chosen):
    """Yields what a binding of an earlier run's file has become."""
    owner, parameter = last(binding.selector), binding.arg_name
    if owner == "get_task":
        # Scoped ones are the defaults of calls in a scope. In `a/get_task.name = ...`
        # a user chose the task of an evaluation.
        argument = _argument_of_run(parameter)
        if not binding.scope and argument not in run:
            yield binding._replace(selector="Run", arg_name=argument)
        elif binding.scope and parameter == "name":
            if binding.value != told.get(("", "name"), binding.value):
                for part in ("LossEvaluation", "DecodedEvaluation", "ScoredEvaluation"):
                    if (binding.scope, part) not in chosen:
                        yield binding._replace(selector=part, arg_name="task")
        elif binding.scope:
            of_all = told.get(("", parameter))
            if binding.value != of_all and (binding.value or of_all):
                raise UserError(
                    f"{binding.scope}/get_task.{parameter} is no longer there"
                    f"{place_of(binding)}: all that a run reads has its "
                    f"Run.{argument}. Read it by an earlier version."
                )
        return
    value = binding.value
    if _asks_get_task(value):
        scope = value.lstrip("@").rpartition("/")[0]
        value = told.get((scope, "name"), told.get(("", "name"), run.get("task")))
    argument = _HAVE_THE_RUN.get(f"{owner}.{parameter}")
    if parameter == "run" and value == "@Run()":
        return
    if argument and argument in run and value in (run[argument], None):
        return
    yield binding._replace(value=value)


def _renamed(binding, old, new):
    """Yields the bindings that stand for one of an old name."""
    (function, _), place = old.split("."), place_of(binding)
    if not _is_of_run(binding):
        what = f"is {new} now" if new else "is no longer there. Leave it out"
        raise UserError(f"{old} {what}{place}.")
    if new is None:
        if _REMOVED[old] not in (_ANY, binding.value):
            raise UserError(
                f"{old} = {binding.value!r} is no longer there: all models have "
                f"{_REMOVED[old]!r}{place}. Read it by an earlier version."
            )
        return
    (owner, parameter), scope = new.split("."), binding.scope
    if owner in ("AnswerLimits", "Sampling"):  # Each search has its own.
        scope = f"{scope}/{function}".strip("/")
    yield binding._replace(scope=scope, selector=owner, arg_name=parameter)
    if owner in _ARGUMENTS:
        reference = Name(f"@{f'{scope}/{owner}'.strip('/')}()")
        yield binding._replace(arg_name=_ARGUMENTS[owner], value=reference)
