"""Registers the tasks and mixtures of `t5.data` with seqio when it is imported.

That needs t5. `get_task` imports this module when it is asked for a name that is not
registered, and the configuration when gin text has a name that gin does not know; a
module that names T5's tasks in a mixture of its own imports it.

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
from remixer_tf.tasks.t5_library import import_t5

import_t5("data.mixtures")  # and with them the tasks
_rates = import_t5("data")

# Not those of this package or of a user's.
for _name in seqio.TaskRegistry.names():
    if _name.startswith(("glue_", "super_glue_", "dpr_", "squad_v010")):
        benchmark_files.use_files(seqio.TaskRegistry.get(_name))

_supervised = [task.name for task in seqio.MixtureRegistry.get("en_mix").tasks]
_supervised.remove("c4_v020_unsupervised")
for _name, _corpus in (
    ("en_mix_span_corruption", "c4_v220_span_corruption"),
    ("en_mix_text_span_corruption", "text_span_corruption"),
):
    seqio.MixtureRegistry.add(
        _name,
        [(_corpus, _rates.rate_unsupervised), *_supervised],
        default_rate=_rates.rate_num_examples,
    )
