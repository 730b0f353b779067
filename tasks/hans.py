"""The task `hans`: pairs that deceive three heuristics of inference.

    mnli hypothesis: The senator believed the banker . premise: The banker believed the
    senator .                                                        non-entailment

HANS (McCoy, Pavlick and Linzen, "Right for the Wrong Reasons", ACL 2019) is asked in
the words of MNLI, which models of it are trained on; neutral and contradiction count as
non-entailment. Files: heuristics_train_set.txt and heuristics_evaluation_set.txt, in
the folder that gin names (`hans.directory`) or REMIXER_TF_HANS_DIR, or hans_perturbed
in REMIXER_TF_DATA; they may be compressed (.gz).
"""

import collections
import functools
from typing import NamedTuple

import seqio

from remixer_tf.tasks.folders import DataFolder
from remixer_tf.tasks.inference_files import THREE_CLASSES, pair_source
from remixer_tf.tasks.rows import TOKENIZE, byte_features
from remixer_tf.tasks.t5_library import function_of_t5

__all__ = ["accuracies", "data_folder"]

CLASSES = ["entailment", "non-entailment"]
FILES = {
    "train": ["heuristics_train_set.txt"],
    "validation": ["heuristics_evaluation_set.txt", "val.tsv"],
    "test": ["eval.tsv"],
}
data_folder = DataFolder("hans", "REMIXER_TF_HANS_DIR", "hans_perturbed")


class Target(NamedTuple):
    """The class of a pair, an index in `CLASSES`, and the heuristic that it tries."""

    label: int
    heuristic: str


def postprocess(text, example=None, is_target=False):
    """seqio postprocessor: an index in `CLASSES`, -1 of other text; or a `Target`."""
    text = "non-entailment" if text in THREE_CLASSES[1:] else text
    label = CLASSES.index(text) if text in CLASSES else -1
    return Target(label, example["idx"].decode()) if is_target else label


def accuracies(targets, predictions):
    """Accuracy of all pairs, and by class and heuristic as the paper reports it.

    Args:
        targets: list of `Target`.
        predictions: list of ints, indices in `CLASSES`.

    Returns:
        {"accuracy": float, "accuracy/entailed/lexical_overlap": float, ...}, in percent
        of the pairs of a class and heuristic; those that occur.
    """
    hits = collections.defaultdict(list)
    for target, prediction in zip(targets, predictions, strict=True):
        entailed = "non-entailed" if target.label else "entailed"
        for name in ("accuracy", f"accuracy/{entailed}/{target.heuristic}"):
            hits[name].append(target.label == prediction)
    return {name: 100 * sum(of) / len(of) for name, of in sorted(hits.items())}


_to_text = functools.partial(
    function_of_t5("data.preprocessors", "glue"),
    benchmark_name="mnli",
    label_names=CLASSES,
    feature_names=["hypothesis", "premise"],
    id_key="heuristic",  # under "idx"
)
seqio.TaskRegistry.add(
    "hans",
    source=pair_source(data_folder, FILES, CLASSES, columns=("heuristic",)),
    preprocessors=[_to_text, *TOKENIZE],
    output_features=byte_features(),
    postprocess_fn=postprocess,
    metric_fns=[accuracies],
    shuffle_buffer_size=30_000,
)
