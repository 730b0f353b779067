"""Registers the tasks and mixtures of `t5.data` with seqio.

For example `super_glue_v102_proportional` and `c4_v220_span_corruption`. They read
their data through tensorflow_datasets and their vocabulary from `gs://t5-data` when
they are used, not when they are registered. GLUE, SuperGLUE and SQuAD are read from
their own files where a folder of them is named, see `benchmark_files.py`.
"""

import seqio

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
