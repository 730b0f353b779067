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
_GONE = "MoE.dispatch", "GShardRouter.second_policy", "HashRouter.counts"
# Of each old name the new one, or None where nothing took its place.
NEW_NAMES = {
    f"{owner}.{parameter}": f"Run.{parameter}"
    for parameter, owners in _OF_RUN.items()
    for owner in owners
} | dict.fromkeys(_GONE)


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
