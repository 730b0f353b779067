"""The bindings that a result of an evaluation depends on."""

from remixer_tf.configuration import parts
from remixer_tf.configuration.values import MACRO, shown

# These train, answer or draw. They change no result of a checkpoint.
_TRAINING = (
    "keras.optimizers.",
    "remixer_tf.analysis.",
    "remixer_tf.checkpoints.",
    "remixer_tf.data.epochs.",
    "remixer_tf.data.images.",
    "remixer_tf.data.lengths.LongExamples",
    "remixer_tf.data.pipeline.Batching",
    "remixer_tf.data.pipeline.train_dataset",
    "remixer_tf.engines.",
    "remixer_tf.evaluation.best.",
    "remixer_tf.evaluation.evaluate.",
    "remixer_tf.objectives.",
    "remixer_tf.optimizers.",
    "remixer_tf.serving.",
    "remixer_tf.training.",
    # The settings of an evaluation have a hash of the vocabulary's file.
    "remixer_tf.data.vocabularies.",
    "remixer_tf.data.vocabulary_training.",
)
_EVALUATION = "remixer_tf.evaluation."
_HOW = ("dtype_policy", "engine", "seed")  # The settings of a result have the first.
_WHICH_AND_WHEN = ("batch_size", "name", "period", "splits", "tables")


def evaluation_bindings(configuration):
    """Returns {binding: value as text} of what may change an evaluation's results.

    Left out are those of `_TRAINING`, those that say which results there are and when,
    and those that bind what holds without them: training writes defaults too. Macros
    are resolved.
    """

    def as_text(value):
        return repr(shown(configuration.without_macros(value)))

    config, found = configuration.bindings, {}
    for (scope, selector), bindings in config.items():
        if selector == MACRO or selector.startswith(_TRAINING):
            continue
        known = parts.parameters(parts.find(selector).wrapped)
        without = {name: parameter.default for name, parameter in known.items()}
        if scope:
            without |= config.get(("", selector), {})
        for name, value in bindings.items():
            left_out = _EVALUATION in selector and name in _WHICH_AND_WHEN
            left_out |= selector == "remixer_tf.run.Run" and name in _HOW
            value = as_text(value)
            same = "/" not in scope and value == as_text(without.get(name))
            if not left_out and not same:
                found[f"{scope}/{selector}.{name}"] = value
    return found
