"""Names that gin knew before: a run's own file may have them, a user's may not."""

from remixer_tf.configuration.bindings import RUN_FILE, Binding, Name
from remixer_tf.errors import UserError

_OF_RUN = {
    "model": ("train", "evaluate", "text_to_text", "text_scorer", "text_encoder",
              "image_to_class"),
    "dtype_policy": ("train", "evaluate", "text_to_text", "text_scorer", "text_encoder",
                     "image_to_class"),
    "engine": ("train", "evaluate", "text_to_text", "text_scorer"),
    "task": ("text_to_text", "text_scorer", "text_encoder"),
    "vocabulary": ("text_to_text", "text_scorer", "text_encoder"),
    "feature_lengths": ("text_to_text", "text_scorer", "text_encoder"),
}  # fmt: skip
# Of each old name the new one, or None where nothing took its place.
NEW_NAMES = {
    f"{owner}.{parameter}": f"Run.{parameter}"
    for parameter, owners in _OF_RUN.items()
    for owner in owners
} | {
    "DecodedEvaluation.vocabulary": "Run.vocabulary",
    "LossEvaluation.vocabulary": "Run.vocabulary",
    "Pictures.vocabulary": "Run.vocabulary",
    "ScoredEvaluation.vocabulary": "Run.vocabulary",
    "table_task.columns": "TableRows.columns",
    "table_task.fractions": "TableRows.fractions",
    "table_task.header": "TableRows.header",
    "table_task.on_bad_rows": "TableRows.on_bad_rows",
    "table_task.seed": "TableRows.seed",
    "train_dataset.batch_size": "Batching.batch_size",
    "train_dataset.count_limit": "LongExamples.count_limit",
    "train_dataset.feature_converter": "Batching.feature_converter",
    "train_dataset.length_buckets": "Batching.length_buckets",
    "train_dataset.over_length": "LongExamples.handling",
    "train_dataset.pack": "Batching.pack",
    "train_dataset.shuffle": "Batching.shuffle",
}
# What took over parameters of a function is bound to one of its own.
_BOUND_TO = {
    "Batching": "train_dataset.batching",
    "LongExamples": "train_dataset.long_examples",
    "TableRows": "table_task.rows",
}


def with_new_names(statements):
    """Returns statements whose old names are the new ones.

    Only what training wrote into a run's folder may have old names. Where several have
    become one, its last value counts, which is that of training.

    Args:
        statements: list of `Binding`s and `Import`s, in order.

    Raises:
        UserError: another file or the command line has an old name.
    """
    found, bound = [], {}
    for statement in statements:
        if (new := _with_new_name(statement)) is None:
            continue
        found.append(new)
        if new is not statement and new.owner in _BOUND_TO:
            name = _BOUND_TO[new.owner]
            selector, _, parameter = name.partition(".")
            value = Name(f"@{new.owner}()")
            bound[name] = new._replace(
                name=name, selector=selector, parameter=parameter, value=value
            )
    return [*bound.values(), *found]


def _with_new_name(statement):
    if not isinstance(statement, Binding):
        return statement
    old = f"{statement.owner}.{statement.parameter}"
    if old not in NEW_NAMES:
        return statement
    new = NEW_NAMES[old]
    if not (statement.file or "").endswith(RUN_FILE):
        what = f"is {new} now" if new else "is no longer there. Leave it out"
        raise UserError(f"{old} {what}{statement.place}.")
    if new is None:
        return None
    selector, _, parameter = new.rpartition(".")
    scope = statement.name.rpartition("/")[0]
    name = f"{scope}/{new}" if scope else new
    return statement._replace(name=name, selector=selector, parameter=parameter)
