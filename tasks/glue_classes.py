"""Sets of GLUE as BERT reads them, for encoders: `sst2_classes`, `mnli_classes`, ...

Devlin et al. 2019, section 4.1: [CLS], a text or a pair of texts, and a class. An
example of `mnli_classes`, with the vocabulary of bytes:

    inputs               [CLS] A man sleeps. [SEP] He is awake. [SEP]
    token_types          0 0 ... 1 1
    targets              [2], out of entailment, neutral, contradiction
    *_pretokenized       the texts and the class

The data are those of T5's tasks, from TFDS or from GLUE's own files
(`benchmark_files.py`), without the test sets, which have no labels. The metric is
accuracy, in percent. `gin/runs/finetune_classifier.gin` trains on one.
"""

import functools

import seqio
import tensorflow as tf

import remixer_tf.tasks.t5_tasks  # noqa: F401 (registers the tasks of T5)
from remixer_tf.tasks import classes
from remixer_tf.tasks.entailment import THREE_CLASSES, TWO_CLASSES

# T5's task, the texts of an example, and the classes in the order of GLUE's labels.
SETS = {
    "sst2": ("glue_sst2_v002", ("sentence",), ["negative", "positive"]),
    "mnli": ("glue_mnli_v002", ("premise", "hypothesis"), THREE_CLASSES),
    "qnli": ("glue_qnli_v002", ("question", "sentence"), TWO_CLASSES),
    "rte": ("glue_rte_v002", ("sentence1", "sentence2"), TWO_CLASSES),
}


@seqio.map_over_dataset
def _to_texts(example, *, texts, names):
    found = {"targets": tf.gather(names, example["label"]), "idx": example["idx"]}
    found |= dict(zip(("inputs", "inputs_b"), map(example.get, texts), strict=False))
    return found


for _name, (_task, _texts, _classes) in SETS.items():
    classes.add_source(
        f"{_name}_classes",
        seqio.TaskRegistry.get(_task).source.with_labels(),
        _classes,
        [functools.partial(_to_texts, texts=_texts, names=_classes)],
        shuffle_buffer_size=10_000,
    )
