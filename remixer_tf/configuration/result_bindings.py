"""Which bindings tell results of evaluations apart."""

import gin

from remixer_tf.configuration.checks import parameters

# What only trains, answers or draws: of a checkpoint, it changes no result.
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
    # The settings of an evaluation have a hash of the file, wherever it lies.
    "remixer_tf.data.vocabularies.",
    "remixer_tf.data.vocabulary_training.",
)
_EVALUATION = "remixer_tf.evaluation."
_HOW = ("dtype_policy", "engine", "seed")  # A result's settings have the first.
_WHICH_AND_WHEN = ("batch_size", "name", "period", "splits", "tables")


def evaluation_bindings():
    """Returns all bindings that may change what an evaluation computes.

    These are all but those of training alone: of functions in `_TRAINING`, and of
    parameters that say which results there are, and when. Macros are written out. A
    binding that says what holds without it is left out: the configuration that training
    wrote spells defaults.

    Returns:
        dictionary of bindings to their values as text.
    """
    config = gin.config._CONFIG
    found = {}
    for (scope, selector), bindings in config.items():
        if selector == "gin.macro":
            continue
        for name, value in bindings.items():
            left_out = _EVALUATION in selector and name in _WHICH_AND_WHEN
            left_out |= selector == "remixer_tf.run.Run" and name in _HOW
            if left_out or selector.startswith(_TRAINING):
                continue
            value = _text(value)
            if "/" in scope or value != _text(_without(scope, selector, name)):
                found[f"{scope}/{selector}.{name}"] = value
    return found


def _text(value):
    """A value as text in which macros are written out."""
    if isinstance(value, dict):
        pairs = (f"{_text(name)}: {_text(item)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    if repr(value).startswith("%"):
        macro = gin.config._CONFIG.get((repr(value)[1:], "gin.macro"), {})
        return _text(macro.get("value"))
    return repr(value)


def _without(scope, selector, parameter):
    """What a parameter is where the binding of a scope does not say it."""
    if scope:
        bindings = gin.config._CONFIG.get(("", selector), {})
        if parameter in bindings:
            return bindings[parameter]
    found = parameters(gin.get_configurable(selector)).get(parameter)
    return None if found is None else found.default
