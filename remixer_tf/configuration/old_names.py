"""Names that gin knew before: a run's own file may have them, a user's may not."""

from gin.config_parser import BindingStatement

from remixer_tf.configuration.bindings import RUN_FILE, last, place_of
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
}


def with_new_names(statements):
    """Returns statements whose old names are the new ones.

    Only what training wrote into a run's folder may have old names. Where several have
    become one, its last value counts, which is that of training.

    Raises:
        UserError: another file or the command line has an old name.
    """
    return [new for statement in statements if (new := _with_new_name(statement))]


def _with_new_name(statement):
    if not isinstance(statement, BindingStatement):
        return statement
    old = f"{last(statement.selector)}.{statement.arg_name}"
    if old not in NEW_NAMES:
        return statement
    new = NEW_NAMES[old]
    if not (statement.location.filename or "").endswith(RUN_FILE):
        what = f"is {new} now" if new else "is no longer there. Leave it out"
        raise UserError(f"{old} {what}{place_of(statement)}.")
    if new is None:
        return None
    selector, _, parameter = new.rpartition(".")
    return statement._replace(selector=selector, arg_name=parameter)
