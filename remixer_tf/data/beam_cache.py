"""Writes the records of caches with Apache Beam, by seqio's own pipeline.

    writer = BeamWriter(["--runner=DirectRunner", "--direct_num_workers=2"], prepare)
    write_caches(task, "cache", write_records=writer)

seqio's `PreprocessTask` reads each file of a task's source on a worker, so a source of
one file is read by one worker. The runner tries again where a worker has died, and only
what a step has finished counts.
"""

import contextlib
import os
import types

import seqio
import tensorflow as tf
from seqio import utils

from remixer_tf.checkpoints.whole_folder import read_json
from remixer_tf.data.pipeline import with_seed
from remixer_tf.data.vocabularies import is_text
from remixer_tf.pipelines import pipeline


class BeamWriter:
    """The argument `write_records` of `write_caches`: a pipeline for each task.

    Args:
        arguments: list of str, Beam's options.
        prepare: a function without arguments that can be pickled. Each worker calls it,
            and it registers the task there, see `register`.
    """

    def __init__(self, arguments, prepare):
        self._arguments, self._prepare = arguments, prepare

    def __call__(self, task, folder, splits, num_shards):
        texts = {k: x for k, x in task.output_features.items() if is_text(x)}
        counted = {name: _special_ids(feature) for name, feature in texts.items()}
        what = f"caching {task.name}"
        with _registered(task), pipeline(self._arguments, what) as started:
            from seqio import beam_utils

            for split in splits:
                read = beam_utils.PreprocessTask(task, split, setup_fn=self._prepare)
                examples = started | f"read {split}" >> read
                prefix = utils.get_cached_tfrecord_prefix(folder, split)
                write = beam_utils.WriteExampleTfRecord(prefix, num_shards)
                examples | f"write {split}" >> write
                stats = examples | f"count {split}" >> beam_utils.GetStats(counted)
                to_file = beam_utils.WriteJson(_stats_file(folder, split))
                stats | f"write statistics of {split}" >> to_file
        return {split: _read_stats(folder, split, texts) for split in splits}


def _stats_file(folder, split):
    return os.path.join(folder, f"beam.{split}.json")


def _read_stats(folder, split, names):
    """Returns the statistics of a split, in the order of a single process."""
    stats = read_json(_stats_file(folder, split))
    tf.io.gfile.remove(_stats_file(folder, split))
    keys = ["examples"]
    for name in names:
        keys += [f"{name}_tokens", f"{name}_max_tokens"]
    return {key: stats[key] for key in keys if key in stats}


def _special_ids(feature):
    """What counting needs of a feature; not every vocabulary can be pickled."""
    ids = {x: getattr(feature.vocabulary, x) for x in ("eos_id", "pad_id", "unk_id")}
    return types.SimpleNamespace(vocabulary=types.SimpleNamespace(**ids))


def register(task):
    """Puts a `seqio.Task`, or the tasks of a mixture, into seqio's registry.

    A worker finds a task there by its name. One that is there already is replaced.
    """
    for subtask in seqio.get_subtasks(task):
        seqio.TaskRegistry.remove(subtask.name)
        seqio.TaskRegistry.add_provider(subtask.name, with_seed(subtask))


@contextlib.contextmanager
def _registered(task):
    """In this block the registry has the task: a runner may work in this process."""
    names = seqio.TaskRegistry.names()
    before = seqio.TaskRegistry.get(task.name) if task.name in names else None
    register(task)
    try:
        yield
    finally:
        seqio.TaskRegistry.remove(task.name)
        if before is not None:
            seqio.TaskRegistry.add_provider(task.name, before)
