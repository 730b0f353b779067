"""Tasks cached on disk, in seqio's own format, and read in place of their source.

A cache holds the examples before `seqio.CacheDatasetPlaceholder`, usually tokenized;
later steps, such as masking, run anew in each epoch. A task's folder holds the files
that `seqio_cache_tasks` (which needs Apache Beam) writes,

    info.train.json                        features and number of shards
    stats.train.json                       examples and tokens
    train.tfrecord-00000-of-00016, ...     `tf.train.Example`s
    COMPLETED

and vocabularies.json: a cache with the ids of another vocabulary is refused.
"""

import contextlib
import os

import numpy as np
import seqio
import tensorflow as tf
from absl import logging
from seqio import utils

from remixer_tf.checkpoints.paths import locate
from remixer_tf.checkpoints.vocabularies import compare_vocabularies
from remixer_tf.checkpoints.whole_folder import (
    read_json,
    whole_folder,
    write_json,
    write_whole,
)
from remixer_tf.data.lengths import splits_of
from remixer_tf.data.vocabularies import describe_vocabularies, is_text
from remixer_tf.errors import MissingFileError, UserError

# Shards are read in turn, an example of each. They are written in turn too, so up to so
# many shards give the source's order.
_IN_TURN = 16
_VOCABULARIES, _COMPLETED = "vocabularies.json", "COMPLETED"


def write_caches(task, directory, num_shards=16, splits=None):
    """Writes the cached examples of a task, or of every task of a mixture.

    A task's folder appears when it is complete; an existing one is not changed. The
    same task gives the same files, byte by byte. Yields (folder, split, statistics):
    {"examples": int, "targets_tokens": int, "targets_max_tokens": int, ...}. Raises a
    ValueError if a task cannot be cached or lacks a split, a split has no examples, or
    an existing cache has another vocabulary.

    Args:
        task: a `seqio.Task` or `seqio.Mixture`.
        directory: str, for the folders of the tasks.
        num_shards: int, files of each split.
        splits: list of str; None for all of a task's.
    """
    for subtask in seqio.get_subtasks(task):
        folder = _folder(directory, subtask)
        if tf.io.gfile.exists(folder):
            logging.warning("%s is there already, and left as it is", folder)
            source = cached_task(subtask, directory).source
            for split in source.splits:
                yield folder, split, source.stats(split)
            continue
        _check(subtask, splits)
        with whole_folder(folder) as temporary:
            stats = {
                split: _write_split(subtask, temporary, split, num_shards)
                for split in splits or splits_of(subtask)
            }
            path = os.path.join(temporary, _VOCABULARIES)
            write_json(path, describe_vocabularies(subtask))
            write_whole(os.path.join(temporary, _COMPLETED), "\n")
        for split, numbers in stats.items():
            yield folder, split, numbers


def _folder(directory, task):
    return os.path.join(locate(directory), utils.get_task_dir_from_name(task.name))


def _check(task, splits):
    if not task.supports_caching:
        raise UserError(
            f"{task.name} cannot be cached: none of its preprocessors is a "
            "seqio.CacheDatasetPlaceholder(), which says where. Put one in after the "
            "last step that is not random and needs no lengths."
        )
    there = splits_of(task)
    if missing := [split for split in splits or () if split not in there]:
        raise UserError(
            f"{task.name} has no split {', '.join(missing)}. It has: "
            f"{', '.join(sorted(there))}."
        )


def cached_task(task, directory):
    """A `seqio.Task` that reads what `write_caches` wrote in place of its source.

    Without shuffling, up to 16 shards give the task's own examples, in the same order
    and with the same random numbers. Errors: there is no cache of the task, the task
    cannot be cached, or the cache has another vocabulary.
    """
    folder = _folder(directory, task)
    if not tf.io.gfile.exists(os.path.join(folder, _COMPLETED)):
        raise MissingFileError(
            f"{str(directory)!r} has no cache of {task.name}. Write it with the same "
            "gin files and values: "
            f"python -m remixer_tf cache --output_dir={directory} --gin_file=..."
        )
    saved = _read_json(os.path.join(folder, _VOCABULARIES))
    for name, cached, given in compare_vocabularies(saved, describe_vocabularies(task)):
        raise UserError(
            f"The cache {folder} was written with another vocabulary of {name}: "
            f"{cached}. Received: {given}. Give that vocabulary "
            "(VOCABULARY, VOCABULARY_FILE), or write another cache."
        )
    before = task._cache_step_idx
    # Steps that do nothing replace those that are done: seqio counts seeds by them.
    preprocessors = [_as_it_is] * before + list(task.preprocessors[before:])
    return task.replace(source=CachedSource(folder), preprocessors=preprocessors)


def _as_it_is(dataset):
    return dataset


class CachedSource(seqio.DataSource):
    """The examples of a task's cache, in `folder`, for `seqio.Task`."""

    supports_arbitrary_sharding = False

    def __init__(self, folder):
        self.folder = folder
        names = sorted(tf.io.gfile.listdir(folder))
        splits = [x[5:-5] for x in names if x.startswith("info.")]  # info.SPLIT.json
        counts = {split: self.stats(split)["examples"] for split in splits}
        self._of_split = {
            split: seqio.dataset_providers._CachedDataSource(
                folder, split, cycle_length=_IN_TURN, block_length=1
            )
            for split in splits
        }
        super().__init__(splits, counts)

    def stats(self, split):
        """Returns the statistics of a split, see `write_caches`."""
        return _read_json(utils.get_cached_stats_path(self.folder, split))

    def list_shards(self, split):
        return self._of_split[split].list_shards(split)

    def get_dataset(self, split="train", shuffle=True, seed=None, shard_info=None, **_):
        return self._of_split[split].get_dataset(split, shuffle, seed, shard_info)


def describe_caches(task, split):
    """Returns which tasks are read from which caches, a str; None if none is."""
    sources = [(subtask.name, subtask.source) for subtask in seqio.get_subtasks(task)]
    texts = [
        f"{name} {split}: {source.num_input_examples(split):,} examples in "
        f"{source.folder}"
        for name, source in sources
        if isinstance(source, CachedSource) and split in source.splits
    ]
    return "; ".join(texts) or None


def _write_split(task, folder, split, num_shards):
    shards = len(task.source.list_shards(split))
    datasets = (_read_shard(task, split, i, shards) for i in range(shards))
    stats, features = {"examples": 0}, None
    prefix = utils.get_cached_tfrecord_prefix(folder, split)
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(
                tf.io.TFRecordWriter(f"{prefix}-{i:05d}-of-{num_shards:05d}")
            )
            for i in range(num_shards)
        ]
        for dataset in datasets:
            features = features or _describe_features(task, dataset)
            for example in dataset:
                message = utils.dict_to_tfexample(example)
                writers[stats["examples"] % num_shards].write(
                    message.SerializeToString(deterministic=True)
                )
                _count(stats, task, example)
    if not stats["examples"]:
        raise UserError(f"{task.name} {split} has no examples to cache.")
    info = {
        "num_shards": num_shards,
        "features": features,
        "seqio_version": seqio.__version__,
    }
    write_json(utils.get_cached_info_path(folder, split), info)
    write_json(utils.get_cached_stats_path(folder, split), stats)
    return stats


def _read_shard(task, split, index, shards):
    info = seqio.ShardInfo(index, shards) if shards > 1 else None
    dataset = task.source.get_dataset(split=split, shuffle=False, shard_info=info)
    return task.preprocess_precache(dataset, seed=index).prefetch(tf.data.AUTOTUNE)


def _describe_features(task, dataset):
    """The features of seqio's info: {feature: {"shape", "dtype"}}."""
    features = {}
    for name, spec in dataset.element_spec.items():
        shape = spec.shape.as_list() if isinstance(spec, tf.TensorSpec) else None
        if shape is None or None in shape[1:]:
            raise UserError(
                f"{task.name} cannot be cached: of its feature {name!r} more than the "
                f"first dimension varies. Received: {spec}."
            )
        if shape:
            shape[0] = None
        features[name] = {"shape": shape, "dtype": spec.dtype.name}
    return features


def _count(stats, task, example):
    """Adds an example to the statistics, which count neither padding nor EOS."""
    stats["examples"] += 1
    for name, feature in task.output_features.items():
        if name in example and is_text(feature) and example[name].dtype.is_integer:
            special = (feature.vocabulary.pad_id, feature.vocabulary.eos_id)
            tokens = int(np.isin(example[name], special, invert=True).sum())
            stats[f"{name}_tokens"] = stats.get(f"{name}_tokens", 0) + tokens
            longest = stats.get(f"{name}_max_tokens", 0)
            stats[f"{name}_max_tokens"] = max(longest, tokens)


def _read_json(path):
    if (value := read_json(path)) is None:
        raise UserError(
            f"The cache is damaged: {path} is missing or no JSON. Write another cache."
        )
    return value
