"""The bindings that a result of an evaluation depends on."""

import gin

from remixer_tf.configuration.checks import parameters, without_macros

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


def evaluation_bindings():
    """Returns {binding: value as text} of what may change an evaluation's results.

    Left out are those of `_TRAINING`, those that say which results there are and when,
    and those that bind what holds without them: training writes defaults too. Macros
    are resolved.
    """
    config, found = gin.config._CONFIG, {}
    for (scope, selector), bindings in config.items():
        if selector == "gin.macro" or selector.startswith(_TRAINING):
            continue
        known = parameters(gin.get_configurable(selector))
        without = {name: parameter.default for name, parameter in known.items()}
        if scope:
            without |= config.get(("", selector), {})
        for name, value in bindings.items():
            left_out = _EVALUATION in selector and name in _WHICH_AND_WHEN
            left_out |= selector == "remixer_tf.run.Run" and name in _HOW
            value = repr(without_macros(value))
            same = "/" not in scope and value == repr(without_macros(without.get(name)))
            if not left_out and not same:
                found[f"{scope}/{selector}.{name}"] = value
    return found
