"""Names that gin knew before: a run's own file may have them, a user's may not."""

from remixer_tf.configuration.bindings import RUN_FILE, Binding
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
# Of each old name the new one, or None where nothing took its place.
NEW_NAMES = {
    f"{owner}.{parameter}": f"Run.{parameter}"
    for parameter, owners in _OF_RUN.items()
    for owner in owners
} | {f"train.{parameter}": new for parameter, new in _OF_TRAIN.items()}
NEW_NAMES["Adafactor.unscaled_variables"] = None


def with_new_names(statements):
    """Returns statements whose old names are the new ones.

    Only what training wrote into a run's folder may have old names. Where several have
    become one, its last value counts, which is that of training.

    Args:
        statements: list of `Binding`s and `Import`s, in order.

    Raises:
        UserError: another file or the command line has an old name.
    """
    return [new for statement in statements if (new := _with_new_name(statement))]


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
