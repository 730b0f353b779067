"""Tasks cached on disk, in seqio's own format, and read in place of their source.

A cache holds the examples before `seqio.CacheDatasetPlaceholder`, usually tokenized;
later steps, such as masking, run anew in each epoch. A task's folder holds the files
that `seqio_cache_tasks` writes,

    info.train.json                        features and number of shards
    stats.train.json                       examples and tokens
    train.tfrecord-00000-of-00016, ...     `tf.train.Example`s
    COMPLETED

and three files of ours:

    vocabularies.json                      those of the ids
    task.json                              the task's settings and files
    checksums.json                         of all these files, see `checksums`

A cache is refused if its vocabulary or settings are others, if the files have changed
since, or if it is damaged. The files need not be there.
"""

import contextlib
import hashlib
import os

import numpy as np
import seqio
import tensorflow as tf
from absl import logging
from seqio import utils

from remixer_tf import __version__
from remixer_tf.arguments import Factory, Path, PositiveInt, Texts, checked
from remixer_tf.checkpoints.checksums import (
    changed_files,
    write_checksums,
    written_checksums,
)
from remixer_tf.checkpoints.paths import locate
from remixer_tf.checkpoints.versions import check_version
from remixer_tf.checkpoints.vocabularies import compare_vocabularies
from remixer_tf.checkpoints.whole_folder import (
    read_json,
    whole_folder,
    write_json,
    write_whole,
)
from remixer_tf.data.failures import reading
from remixer_tf.data.kinds import Task
from remixer_tf.data.lengths import splits_of
from remixer_tf.data.numbered_files import numbered_files, records
from remixer_tf.data.task_settings import describe_task, differences, to_json
from remixer_tf.data.vocabularies import describe_vocabularies, is_text
from remixer_tf.errors import MissingFileError, UserError, shorten

# Shards are read in turn, an example of each. They are written in turn too, so up to so
# many shards give the source's order.
_IN_TURN = 16
_VOCABULARIES, _TASK, _COMPLETED = "vocabularies.json", "task.json", "COMPLETED"


@checked
def write_caches(
    task: Task,
    directory: Path,
    num_shards: PositiveInt = 16,
    splits: Texts | None = None,
    write_records: Factory | None = None,
):
    """Writes the cached examples of a task, or of every task of a mixture.

    A task's folder appears when it is complete; an existing one is not changed. The
    same task gives the same files, byte by byte; with Beam, the same records in any
    order. Yields (folder, split, statistics):
    {"examples": int, "targets_tokens": int, "targets_max_tokens": int, ...}. Raises a
    ValueError if a task cannot be cached or lacks a split, a split has no examples, or
    an existing cache is another task's, see `cached_task`.

    Args:
        task: a `seqio.Task` or `seqio.Mixture`.
        directory: str, for the folders of the tasks.
        num_shards: int, files of each split.
        splits: list of str; None for all of a task's.
        write_records: a function of a task, a folder, splits and `num_shards`, which
            writes the files of records and returns {split: statistics}; None for this
            process. See `remixer_tf.data.beam_cache`.
    """
    write_records = write_records or _write_records
    for subtask in seqio.get_subtasks(task):
        folder = _folder(directory, subtask)
        if tf.io.gfile.exists(folder):
            logging.warning("%s is there already, and left as it is", folder)
            source = cached_task(subtask, directory).source
            for split in source.splits:
                yield folder, split, source.stats(split)
            continue
        _check(subtask, splits)
        described = describe_task(subtask)  # Reading may change what its source holds.
        with whole_folder(folder) as temporary:
            stats = _write_splits(
                subtask,
                temporary,
                splits or splits_of(subtask),
                num_shards,
                write_records,
            )
            path = os.path.join(temporary, _VOCABULARIES)
            write_json(path, describe_vocabularies(subtask))
            made_from = {"version": __version__, **to_json(described)}
            write_json(os.path.join(temporary, _TASK), made_from)
            write_checksums(temporary)
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


@checked
def cached_task(task: Task, directory: Path):
    """A `seqio.Task` that reads what `write_caches` wrote in place of its source.

    Without shuffling, up to 16 shards give the task's own examples, in the same order
    and with the same random numbers.

    Raises an error if the task has no cache or cannot be cached, if the cache is
    damaged or comes from a newer version, and if the task's vocabulary, settings or
    files have changed.
    """
    folder = _folder(directory, task)
    if not tf.io.gfile.exists(os.path.join(folder, _COMPLETED)):
        raise MissingFileError(
            f"{str(directory)!r} has no cache of {task.name}. If it has moved, name "
            "its folder (CACHE_DIR). Or write it with the same gin files and values: "
            f"python -m remixer_tf cache --output_dir={directory} --gin_file=..."
        )
    source = CachedSource(folder)
    saved = _read_json(os.path.join(folder, _VOCABULARIES))
    for name, cached, given in compare_vocabularies(saved, describe_vocabularies(task)):
        raise UserError(
            f"The cache {folder} was written with another vocabulary of {name}: "
            f"{cached}. Received: {given}. Give that vocabulary "
            "(VOCABULARY, VOCABULARY_FILE), or write another cache."
        )
    _check_settings(task, directory, folder)
    before = task._cache_step_idx
    # Steps that do nothing replace those that are done: seqio counts seeds by them.
    preprocessors = [_as_it_is] * before + list(task.preprocessors[before:])
    return task.replace(source=source, preprocessors=preprocessors)


def _check_settings(task, directory, folder):
    """Raises a UserError if a cache was written from another task or other files."""
    path = os.path.join(folder, _TASK)
    if not tf.io.gfile.exists(path):
        logging.warning(
            "%s does not say from which settings and files it was written, since an "
            "earlier version wrote it. Whether they are these cannot be checked.",
            folder,
        )
        return
    saved = _read_json(path)
    check_version(saved.get("version"), folder)
    given = {"version": saved.get("version"), **describe_task(task)}
    if lines := [*differences(saved, given)]:
        raise UserError(
            f"The cache {folder} was written from another {task.name}: "
            f"{shorten(lines, '; ')}. Train with the settings and files of the cache; "
            f"or remove {folder} and write it again, with the gin files and values of "
            f"training: python -m remixer_tf cache --output_dir={directory} "
            "--gin_file=..."
        )


def _as_it_is(dataset):
    return dataset


class CachedSource(seqio.DataSource):
    """The examples of a task's cache, in `folder`, for `seqio.Task`."""

    supports_arbitrary_sharding = False

    def __init__(self, folder):
        self.folder = folder
        names = sorted(tf.io.gfile.listdir(folder))
        splits = [x[5:-5] for x in names if x.startswith("info.")]  # info.SPLIT.json
        try:
            self._checksums = written_checksums(folder)
        except UserError as error:
            raise _damaged(folder, str(error).rstrip(".")) from None
        jsons = {k: x for k, x in self._checksums.items() if k.endswith(".json")}
        if changed := changed_files(folder, jsons):
            raise _damaged(folder, f"missing or changed: {shorten(changed)}")
        counts = {split: self.stats(split)["examples"] for split in splits}
        self._shards = {split: self._check_shards(split, names) for split in splits}
        self._good = set()  # shards whose bytes have been compared
        self._of_split = {
            split: numbered_files(
                seqio.dataset_providers._CachedDataSource(
                    folder, split, cycle_length=_IN_TURN, block_length=1
                ),
                self._reader(split),
            )
            for split in splits
        }
        super().__init__(splits, counts)

    def _check_shards(self, split, there):
        """Returns the names of the shards of a split, which are all there."""
        info = _read_json(utils.get_cached_info_path(self.folder, split))
        number = info["num_shards"]
        prefix = utils.get_cached_tfrecord_prefix("", split)
        shards = [f"{prefix}-{i:05d}-of-{number:05d}" for i in range(number)]
        if lost := sorted({*shards} - {*there}):
            raise _damaged(self.folder, f"missing: {shorten(lost)}")
        if not self._checksums and self.stats(split)["examples"] >= number:
            sizes = {
                name: tf.io.gfile.stat(os.path.join(self.folder, name)).length
                for name in shards
            }
            if empty := [name for name, size in sizes.items() if not size]:
                raise _damaged(self.folder, f"empty: {shorten(empty)}")
        return shards

    def _reader(self, split):
        """Returns what reads a shard; None for seqio's own, if it needs that.

        Other programs write features of which several dimensions vary.
        """
        info = _read_json(utils.get_cached_info_path(self.folder, split))
        features, stored = info["features"], {"int32": "int64", "bool": "int64"}
        description = {}
        for name, feature in features.items():
            shape, dtype = feature["shape"], feature["dtype"]
            dtype = stored.get(dtype, dtype)
            if None in shape[1:] or name.endswith("_plaintext"):
                return None
            description[name] = tf.io.FixedLenFeature(shape, dtype)
            if shape[:1] == [None]:
                description[name] = tf.io.FixedLenSequenceFeature(
                    shape[1:], dtype, allow_missing=True
                )

        @tf.autograph.experimental.do_not_convert
        def parse(record):
            example = tf.io.parse_single_example(record, description)
            return {k: tf.cast(x, features[k]["dtype"]) for k, x in example.items()}

        return lambda path: records(path).map(parse, tf.data.AUTOTUNE)

    def stats(self, split):
        """Returns the statistics of a split, see `write_caches`."""
        return _read_json(utils.get_cached_stats_path(self.folder, split))

    def list_shards(self, split):
        return [os.path.join(self.folder, name) for name in self._shards[split]]

    def get_dataset(self, split="train", shuffle=True, seed=None, shard_info=None, **_):
        part = shard_info or seqio.ShardInfo(0, 1)
        self._compare(split, part)
        dataset = self._of_split[split].get_dataset(split, shuffle, seed, shard_info)
        if part.num_shards == 1:
            count = tf.data.experimental.assert_cardinality
            dataset = dataset.apply(count(self.num_input_examples(split)))
        return dataset

    def _compare(self, split, part):
        """Compares the bytes of the shards that a host reads, once."""
        names = self._shards[split][part.index :: part.num_shards]
        written = {
            name: self._checksums[name]
            for name in names
            if name in self._checksums and name not in self._good
        }
        if changed := changed_files(self.folder, written):
            raise _damaged(self.folder, f"missing or changed: {shorten(changed)}")
        self._good.update(written)


def _damaged(folder, what):
    return UserError(
        f"The cache {folder} is damaged: {what}. Copy it again, or remove it and write "
        "it again with python -m remixer_tf cache."
    )


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


def _write_splits(task, folder, splits, num_shards, write_records):
    features = {}
    for split in splits:
        with reading(task, split):
            features[split] = _describe_features(task, split)
    stats = write_records(task, folder, splits, num_shards)
    for split in splits:
        if not stats[split]["examples"]:
            raise UserError(f"{task.name} {split} has no examples to cache.")
        info = {
            "num_shards": num_shards,
            "features": features[split],
            "seqio_version": seqio.__version__,
        }
        write_json(utils.get_cached_info_path(folder, split), info)
        write_json(utils.get_cached_stats_path(folder, split), stats[split])
    return stats


def _write_records(task, folder, splits, num_shards):
    return {split: _write_split(task, folder, split, num_shards) for split in splits}


def _write_split(task, folder, split, num_shards):
    stats = {"examples": 0}
    prefix = utils.get_cached_tfrecord_prefix(folder, split)
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(
                tf.io.TFRecordWriter(f"{prefix}-{i:05d}-of-{num_shards:05d}")
            )
            for i in range(num_shards)
        ]
        for example in _examples(task, split):
            message = utils.dict_to_tfexample(example)
            writers[stats["examples"] % num_shards].write(
                message.SerializeToString(deterministic=True)
            )
            _count(stats, task, example)
    return stats


def _examples(task, split):
    """Yields the examples of a split."""
    with reading(task, split):
        shards = len(task.source.list_shards(split))
        for index in range(shards):
            yield from _read_shard(task, split, index, shards)


def _read_shard(task, split, index, shards):
    # The seed of seqio's `PreprocessTask`, for a step that is random.
    digest = hashlib.md5(f"{task.name}shard{index}".encode()).digest()
    seed = int.from_bytes(digest[:7], "little")
    info = seqio.ShardInfo(index, shards) if shards > 1 else None
    dataset = task.source.get_dataset(split=split, shuffle=False, shard_info=info)
    return task.preprocess_precache(dataset, seed=seed).prefetch(tf.data.AUTOTUNE)


def _describe_features(task, split):
    """The features of seqio's info: {feature: {"shape", "dtype"}}."""
    features, shards = {}, len(task.source.list_shards(split))
    for name, spec in _read_shard(task, split, 0, shards).element_spec.items():
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
    if not isinstance(value := read_json(path), dict):
        folder, name = os.path.split(path)
        raise _damaged(folder, f"{name} is missing or no JSON")
    return value
