"""Names that gin knew before: a run's own file may have them, a user's may not."""

from gin.config_parser import BindingStatement

from remixer_tf.configuration.bindings import RUN_FILE, Name, last, place_of
from remixer_tf.errors import UserError

# Old owners of parameters, the parameters, and their owner now.
_MOVED = (
    ("train evaluate text_to_text text_scorer text_encoder image_to_class",
     "model dtype_policy", "Run"),
    ("train evaluate text_to_text text_scorer", "engine", "Run"),
    ("text_to_text text_scorer text_encoder", "task vocabulary feature_lengths", "Run"),
    ("DecodedEvaluation LossEvaluation Pictures ScoredEvaluation", "vocabulary", "Run"),
    ("train", "seed", "Run"),
    ("train", "train_steps steps_per_call log_period checkpoint_period "
     "examples_per_epoch", "Schedule"),
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
)  # fmt: skip
# What is no longer there, and the value that says what is done now.
_ANY = object()
_GONE = {
    "Adafactor.unscaled_variables": (),
    "GShardRouter.second_policy": "random",
    "HashRouter.counts": None,
    "LengthMixing.renormalize": True,
    "MoE.dispatch": _ANY,
    "RemixerBlock.renormalize": True,
    "TransformerStack.survival_schedule": "linear",
}
# Of each old name the new one, or None where nothing took its place.
NEW_NAMES = {
    **{
        f"{owner}.{parameter}": f"{new}.{parameter}"
        for owners, parameters, new in _MOVED
        for owner in owners.split()
        for parameter in parameters.split()
    },
    "train.keep_checkpoints": "Checkpointing.keep",
    "train.initial_checkpoint": "Checkpointing.initial",
    "train_dataset.over_length": "LongExamples.handling",
    "RemixerBlock.width": "RemixerBlock.d_ff",
    "SpatialGatingUnit.num_heads": "SpatialGatingUnit.num_mixing_heads",
    "LengthMixing.num_heads": "LengthMixing.num_mixing_heads",
    **dict.fromkeys(_GONE),
}
# The new owner is bound to a parameter of the function that had the parameters.
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

    Raises:
        UserError: another file or the command line has an old name.
    """
    return [new for statement in statements for new in _with_new_name(statement)]


def _with_new_name(statement):
    """The statements that take the place of one."""
    if not isinstance(statement, BindingStatement):
        return [statement]
    old = f"{last(statement.selector)}.{statement.arg_name}"
    if old not in NEW_NAMES:
        return [statement]
    new = NEW_NAMES[old]
    if not (statement.location.filename or "").endswith(RUN_FILE):
        what = f"is {new} now" if new else "is no longer there. Leave it out"
        raise UserError(f"{old} {what}{place_of(statement)}.")
    if new is None:
        if _GONE[old] not in (_ANY, statement.value):
            raise UserError(
                f"{old} = {statement.value!r} is no longer there: all models have "
                f"{_GONE[old]!r}{place_of(statement)}. Read it by an earlier version."
            )
        return []

    def renamed(name, value, scope):
        selector, _, parameter = name.rpartition(".")
        return statement._replace(
            scope=scope, selector=selector, arg_name=parameter, value=value
        )

    owner, function = new.partition(".")[0], last(statement.selector)
    part, inner = _PARTS.get(owner, ""), statement.scope
    if part.startswith("{owner}"):  # Each search has its own.
        inner = f"{inner}/{function}".removeprefix("/")
    statements = [renamed(new, statement.value, inner)]
    if part:
        reference = Name(f"@{inner}/{owner}()".replace("@/", "@"))
        part = part.format(owner=function)
        statements.append(renamed(part, reference, statement.scope))
    return statements
