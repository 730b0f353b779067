"""The library t5, imported when first used: many runs do not need it.

It is the only library that `pip install` of this package does not install.
"""

import functools
import importlib
import inspect
import sys

import gin

from remixer_tf.errors import MissingLibraryError

MISSING = (
    "t5, which this needs, is not installed: pip install --no-deps t5==0.9.4 (with its "
    "dependencies it would overwrite tensorflow-datasets and seqio)."
)


@functools.cache
def import_t5(name):
    """Returns a module of t5's, such as "data.preprocessors".

    Raises an ImportError that says how to install t5.
    """
    try:
        with gin.unlock_config():  # t5 registers its functions, perhaps in mid-run.
            return importlib.import_module(f"t5.{name}")
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] != "t5":
            raise
        raise MissingLibraryError(MISSING) from None


def function_of_t5(module, name):
    """Returns the function `name` of t5's `module`, imported at its first call."""

    def call(*args, **kwargs):
        return getattr(import_t5(module), name)(*args, **kwargs)

    return call


# The functions of t5.evaluation.metrics all of whose numbers are percentages. The areas
# under curves are from 0 to 1, and edit distances count words.
_PERCENTAGES = (
    "accuracy all_match bleu coqa_f1 f1_score_with_invalid multirc_f1_over_all_answers "
    "pearson_corrcoef rank_classification rouge sequence_accuracy span_squad "
    "spearman_corrcoef squad trivia_qa"
).split()


def in_percent(metric):
    """Returns whether all numbers of a metric function of t5's are percentages.

    A function that t5 has made of another (`deduplicate_metric`) has the other's scale,
    and one of scikit-learn's has that of its `metric_post_process_fn`. False for what
    is not t5's.
    """
    if isinstance(metric, functools.partial):
        return in_percent(metric.func)
    t5 = sys.modules.get("t5.evaluation.metrics")
    if t5 is None or getattr(metric, "__module__", None) != t5.__name__:
        return False
    made_of = inspect.getclosurevars(metric).nonlocals
    if "metric_fn" in made_of:
        return in_percent(made_of["metric_fn"])
    if scale := made_of.get("metric_post_process_fn"):
        return scale(1.0) == 100
    return any(metric is getattr(t5, name) for name in _PERCENTAGES)
