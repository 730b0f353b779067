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
# The settings of a result have the policy; a cache has what its source gives.
_HOW = ("dtype_policy", "engine", "seed", "cache_dir")
_EVALUATIONS = {
    "decoded": "DecodedEvaluation",
    "loss": "LossEvaluation",
    "scored": "ScoredEvaluation",
}
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
    return _as_before(found)


def _as_before(found):
    """Adds what runs had besides until 2026-11-27, so that results keep their keys."""
    data, of_run = "/remixer_tf.data.pipeline", "/remixer_tf.run.Run"
    of_task = {"task": "name", "vocabulary": "vocabulary", "without": "without"}
    for name, earlier in of_task.items():
        if (value := found.get(f"{of_run}.{name}", "None")) != "None":
            found[f"{data}.get_task.{earlier}"] = value
            if name != "without":
                found[f"{data}.allowed_answers.{name}"] = value
    found.pop(f"{of_run}.without", None)
    for module, name in _EVALUATIONS.items():
        part = f"/remixer_tf.evaluation.{module}.{name}"
        found.setdefault(f"{part}.task", "@get_task()")
        found[f"{part}.run"] = "@Run()"
    return found
