"""Registers the tasks and mixtures of `t5.data` with seqio.

For example `super_glue_v102_proportional` and `c4_v220_span_corruption`. They read
their data through tensorflow_datasets and their vocabulary from `gs://t5-data` when
they are used, not when they are registered. GLUE, SuperGLUE and SQuAD are read from
their own files where a folder of them is named, see `benchmark_files.py`.

`en_mix_span_corruption` is the mixture of C4, GLUE, SuperGLUE and SQuAD that "Remixers"
co-train on (section 4): T5's `en_mix`, whose C4 is corrupted only where T5's own gin
files say how, with span corruption named. T5's rates: C4 has `rate_unsupervised.value`
(1e6 unless gin sets it), every other task the number of its training examples, up to
`rate_num_examples.maximum` (no limit unless gin sets it). Neither paper tells which of
the two values its runs used; these are T5's defaults. `en_mix_text_span_corruption` is
the same with text files of one's own, `text_span_corruption`, in place of C4.
`get_task.without` leaves out tasks of a mixture whose files are not at hand.
"""

import seqio

import remixer_tf.tasks.text  # noqa: F401, registers text_span_corruption
from remixer_tf.tasks import benchmark_files

try:
    import t5.data.mixtures  # imports t5.data.tasks too
    import t5.evaluation.metrics
except ModuleNotFoundError as error:
    if error.name.split(".")[0] == "t5":
        raise ImportError(
            "t5, which holds T5's tasks and mixtures, is not installed. Install it "
            "with:\n    pip install --no-deps t5==0.9.4\n"
            "Without --no-deps it brings tfds-nightly and seqio-nightly, which "
            "overwrite the files of tensorflow-datasets and seqio."
        ) from error
    raise

__all__ = ["t5"]

for _name in seqio.TaskRegistry.names():
    benchmark_files.use_files(seqio.TaskRegistry.get(_name))

_supervised = [task.name for task in seqio.MixtureRegistry.get("en_mix").tasks]
_supervised.remove("c4_v020_unsupervised")
for _name, _corpus in (
    ("en_mix_span_corruption", "c4_v220_span_corruption"),
    ("en_mix_text_span_corruption", "text_span_corruption"),
):
    seqio.MixtureRegistry.add(
        _name,
        [(_corpus, t5.data.rate_unsupervised), *_supervised],
        default_rate=t5.data.rate_num_examples,
    )
