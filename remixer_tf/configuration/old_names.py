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
_OF_TRAIN = {
    "seed": "Run.seed",
    "train_steps": "Schedule.train_steps",
    "steps_per_call": "Schedule.steps_per_call",
    "log_period": "Schedule.log_period",
    "checkpoint_period": "Schedule.checkpoint_period",
    "examples_per_epoch": "Schedule.examples_per_epoch",
    "keep_checkpoints": "Checkpointing.keep",
    "keep_period": "Checkpointing.keep_period",
    "best": "Checkpointing.best",
    "initial_checkpoint": "Checkpointing.initial",
    "restart_data_at": "Checkpointing.restart_data_at",
    "loss_fn": "Objective.loss_fn",
    "auxiliary_loss_weights": "Objective.auxiliary_loss_weights",
    "micro_batches": "Objective.micro_batches",
    "clip_norm": "Objective.clip_norm",
    "max_skipped_steps": "Objective.max_skipped_steps",
}
_OF_LIMITS = "min_length", "allowed", "no_repeat_ngram_size", "repetition_penalty"
_SEARCHES = "beam_search", "greedy_decode", "sample"
_GONE = (
    "GShardRouter.second_policy",
    "HashRouter.counts",
    "LengthMixing.dropout_rate",
    "LengthMixing.renormalize",
    "MoE.dispatch",
    "RemixerBlock.mixing_dropout_rate",
    "RemixerBlock.renormalize",
)
# Of each old name the new one, or None where nothing took its place.
NEW_NAMES = {
    **{
        f"{owner}.{parameter}": f"Run.{parameter}"
        for parameter, owners in _OF_RUN.items()
        for owner in owners
    },
    **{f"train.{parameter}": new for parameter, new in _OF_TRAIN.items()},
    **{
        f"{search}.{name}": f"AnswerLimits.{name}"
        for search in _SEARCHES
        for name in _OF_LIMITS
    },
    **{
        f"sample.{name}": f"Sampling.{name}"
        for name in ("temperature", "top_k", "top_p")
    },
    "RemixerBlock.width": "RemixerBlock.d_ff",
    "SpatialGatingUnit.num_heads": "SpatialGatingUnit.num_mixing_heads",
    "LengthMixing.num_heads": "LengthMixing.num_mixing_heads",
    **dict.fromkeys(_GONE),
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
_PARTS = {
    "AnswerLimits": "{owner}.limits",
    "Batching": "train_dataset.batching",
    "LongExamples": "train_dataset.long_examples",
    "Sampling": "{owner}.sampling",
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
    return [new for statement in statements for new in _with_new_name(statement)]


def _with_new_name(statement):
    """The statements that take the place of one."""
    if not isinstance(statement, Binding):
        return [statement]
    old = f"{statement.owner}.{statement.parameter}"
    if old not in NEW_NAMES:
        return [statement]
    new = NEW_NAMES[old]
    if not (statement.file or "").endswith(RUN_FILE):
        what = f"is {new} now" if new else "is no longer there. Leave it out"
        raise UserError(f"{old} {what}{statement.place}.")
    if new is None:
        return []
    scope = statement.name.rpartition("/")[0]
    prefix = f"{scope}/" if scope else ""

    def renamed(name, value):
        selector, _, parameter = name.rpartition(".")
        return statement._replace(
            name=prefix + name, selector=selector, parameter=parameter, value=value
        )

    owner, statements = new.partition(".")[0], [renamed(new, statement.value)]
    if owner in _PARTS:
        part = _PARTS[owner].format(owner=statement.owner)
        statements.append(renamed(part, Name(f"@{prefix}{owner}()")))
    return statements
