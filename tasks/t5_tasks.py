"""Registers the tasks and mixtures of `t5.data` with seqio when it is imported.

That needs t5. `get_task` imports this module for a name that is not registered, and the
configuration for a name in gin text that gin does not know. A module whose own mixture
names T5's tasks must import it.

The tasks, such as `super_glue_v102_proportional` and `c4_v220_span_corruption`, read
data through tensorflow_datasets and their vocabulary from `gs://t5-data` only when they
are used. GLUE, SuperGLUE and SQuAD can come from their own files, see
`benchmark_files.py`.

`en_mix_span_corruption` is the mixture of C4, GLUE, SuperGLUE and SQuAD for co-training
in "Remixers" (section 4): T5's `en_mix` with span corruption of C4. The rates are T5's:
C4 has `rate_unsupervised.value` (1e6 unless gin sets it), every other task the number
of its training examples, up to `rate_num_examples.maximum` (no limit unless gin sets
it). Neither paper gives the values of its runs; these are T5's defaults.
`en_mix_text_span_corruption` has your text files, `text_span_corruption`, in place of
C4. `Run.without` leaves out tasks whose files are missing.
"""

import seqio

import remixer_tf.tasks.text  # noqa: F401, registers text_span_corruption
from remixer_tf.tasks import benchmark_files
from remixer_tf.tasks.t5_library import import_t5

import_t5("data.mixtures")  # and with them the tasks
_rates = import_t5("data")

# Only T5's tasks, not this package's or a user's.
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
