"""From a registered task to training batches, with seqio and tf.data.

seqio reads, tokenizes, mixes, shards, shuffles and converts; this file adds length
buckets, the count of over-long examples and the axis of steps. Under
`feature_lengths={"inputs": 5, "targets": 4}` a task's example

    {"inputs": [7, 8, 1], "targets": [3, 9, 1]}

becomes, in a batch of one and one step per call,

    {"encoder_input_tokens": [[[7, 8, 1, 0, 0]]],
     "decoder_input_tokens": [[[0, 3, 9, 1]]],
     "decoder_target_tokens": [[[3, 9, 1, 0]]],
     "decoder_loss_weights": [[[1, 1, 1, 0]]]}
"""

import dataclasses
import functools
import inspect
import math
import numbers

import keras
import seqio
import tensorflow as tf
from absl import logging

from remixer_tf.arguments import Factory, TheRun, check_fields
from remixer_tf.checkpoints.paths import Located
from remixer_tf.data.caching import cached_task, describe_caches
from remixer_tf.data.language_model import check_reads_inputs
from remixer_tf.data.late_tasks import register_waiting
from remixer_tf.data.lengths import (
    LengthBuckets,
    LongExamples,
    check_feature_lengths,
    count_over_length,
    fits,
    has_split,
    join_counts,
    needs_lengths,
    refuse_over_length,
    splits_of,
    whole_lengths,
)
from remixer_tf.data.numbered_files import numbered_files
from remixer_tf.data.texts import describe_changed_answers
from remixer_tf.data.vocabularies import describe_vocabularies, is_text
from remixer_tf.errors import (
    MissingFileError,
    UserError,
    check_integers,
    check_paths,
    nearest,
)

# Calls of a cheap map at once. With the few that AUTOTUNE chooses, threads wake each
# other for every example. Filling the shuffle buffer of mini_cogs then takes 3.0 s of
# CPU time, and 1.5 s with these (2 cores of an AMD EPYC, 2026-11-26). With 256 it takes
# 1.3 s, but every checkpoint holds the examples of these calls, whole documents too.
_PARALLEL_CALLS = 32


def get_task(name, vocabulary=None, cache_dir: Located = None, without=()):
    """Returns a registered task or mixture, perhaps changed; the registered one stays.

    Raises a ValueError if nothing is registered under `name`, `without` has other names
    or all, or the cache has another vocabulary; a FileNotFoundError without a cache.

    Args:
        name: str, or a `seqio.Task` or `seqio.Mixture`.
        vocabulary: a `seqio.Vocabulary` for every text feature; None keeps the task's.
        cache_dir: None, or a folder of `python -m remixer_tf cache`, which is read in
            place of the tasks' sources.
        without: names of tasks to leave out of a mixture.
    """
    task = _registered(name) if isinstance(name, str) else name
    if not isinstance(task, (seqio.Task, seqio.Mixture)):
        raise UserError(
            "A task must be the name of a registered one (TASK in gin), or a "
            f"seqio.Task or seqio.Mixture. Received: {task!r}"
        )
    if vocabulary is not None:
        task = _replace_vocabulary(task, vocabulary)
    if cache_dir is not None:
        check_paths(cache_dir=cache_dir)
        task = _change_tasks(
            task, lambda x: x if x.name in without else cached_task(x, cache_dir)
        )
    return _leave_out(task, without) if without else task


def data_of(run, task=None, feature_lengths=None):
    """Returns a task or mixture, with a run's vocabulary, and lengths.

    The run's own are the defaults. Without a run, None, both must be given.
    """
    if run is None:
        if task is None or feature_lengths is None:
            raise UserError("data need a run, or a task and feature_lengths.")
        return get_task(task), feature_lengths
    own = task is None or task == run.task
    task = run.get_task(True) if own else get_task(task, run.vocabulary)
    return task, run.feature_lengths if feature_lengths is None else feature_lengths


def allowed_answers(strings, task=None, vocabulary=None, *, run: TheRun | None = None):
    """Encodes a search's argument `allowed`, the answers that it may give.

    `strings` is a list of str, such as the labels of a classification task. Returns
    lists of int, ids of the targets' vocabulary without EOS. See `get_task`; without a
    `task` it is the run's. Logs those that the vocabulary writes otherwise.
    """
    if not isinstance(strings, (list, tuple)) or not all(
        isinstance(string, str) for string in strings
    ):
        raise UserError(
            f"strings must be a list of str. Received: strings={strings!r:.200}"
        )
    task = run.get_task() if task is None and run else get_task(task, vocabulary)
    vocabulary = task.output_features["targets"].vocabulary
    if message := describe_changed_answers(vocabulary, strings):
        logging.warning("allowed_answers: %s.", message)
    return [list(vocabulary.encode(string)) for string in strings]


def _registered(name):
    """The task or mixture of a name; unknown names register the late tasks."""
    registries = seqio.TaskRegistry, seqio.MixtureRegistry
    without_t5 = ""
    if not any(name in registry.names() for registry in registries):
        try:
            register_waiting()
        except ImportError as error:
            without_t5 = f" T5's tasks are not among them: {error}"
    names = {name for registry in registries for name in registry.names()}
    if name not in names:
        raise UserError(
            f"No task or mixture is registered under the name {name!r}."
            f"{nearest(name, names)}{without_t5} `remixer_tf tasks` lists all. "
            "Name the module that registers a task of yours: --module_import=MODULE."
        )
    return seqio.get_mixture_or_task(name)


def _leave_out(mixture, without):
    """The mixture without some tasks. The rates of the others stay as they are."""
    names = [subtask.name for subtask in seqio.get_subtasks(mixture)]
    if isinstance(without, str) or not {*without} < {*names}:
        raise UserError(
            f"without must be a list of some of the tasks of {mixture.name}: "
            f"{', '.join(names)}. Received: without={without!r}"
        )

    own = {subtask.name: subtask for subtask in mixture.tasks}

    def rate(task):  # By its name, as the task may have been changed since.
        return mixture.get_rate(own[task.name])

    tasks = [subtask for name, subtask in own.items() if name not in without]
    return seqio.Mixture(mixture.name, tasks, rate, sample_fn=mixture._sample_fn)


def _replace_vocabulary(task, vocabulary):
    if not isinstance(vocabulary, seqio.Vocabulary):
        raise UserError(
            "vocabulary must be None or a seqio.Vocabulary (in gin: "
            "@byte_vocabulary() or @sentencepiece_vocabulary()). Received: "
            f"{vocabulary!r}"
        )

    def replace(subtask):
        features = dict(subtask.output_features)
        for name, feature in features.items():
            if is_text(feature):
                features[name] = dataclasses.replace(feature, vocabulary=vocabulary)
        return subtask.replace(output_features=features)

    return _change_tasks(task, replace)


def _change_tasks(task, change):
    """Returns a task, or a mixture with all its tasks, changed by `change`."""
    # A mixture keeps its sub-mixtures, so that its rates stay seqio's. Rates that count
    # examples ask the changed task, which knows their number if it is cached.
    changed = {}  # By name, since several sub-mixtures may share a task.

    def copy(provider):
        if provider.name not in changed:
            if isinstance(provider, seqio.Task):
                changed[provider.name] = change(provider)
            else:
                rates = provider.rate_per_task_name
                changed[provider.name] = seqio.Mixture(
                    provider.name,
                    [(copy(x), rates[name]) for name, x in provider._task_map.items()],
                    sample_fn=provider._sample_fn,
                )
        return changed[provider.name]

    return copy(task)


@dataclasses.dataclass(frozen=True)
class Batching:
    """How examples become batches.

    Attributes:
        batch_size: int, examples or packed rows per step, on all hosts together, in
            every bucket.
        shuffle: bool.
        pack: bool, whether short examples share a row, with
            `{encoder,decoder}_{segment_ids,positions}`.
        length_buckets: None, or a list of dictionaries like `feature_lengths`, from
            short to long; `feature_lengths` is the last. An example goes to the first
            bucket that holds all of its features. A bucket gives an element once it has
            `steps_per_call * batch_size` examples.
        feature_converter: a `seqio.FeatureConverter` class.
    """

    batch_size: int
    shuffle: bool = True
    pack: bool = False
    length_buckets: list | None = None
    feature_converter: Factory = seqio.EncDecFeatureConverter

    def __post_init__(self):
        check_fields(self)

    def host_batch_size(self, num_hosts):
        """Returns a host's examples per step; raises a ValueError if none fits."""
        check_integers(batch_size=self.batch_size)
        if self.batch_size % num_hosts:
            raise UserError(
                f"A batch of {self.batch_size} examples does not divide among "
                f"{num_hosts} hosts. Set a batch size that is a multiple of "
                f"{num_hosts}."
            )
        if self.length_buckets and num_hosts > 1:
            raise UserError(
                f"length_buckets need one host, there are {num_hosts}: each would be "
                "at a length of its own, and their collectives would wait for each "
                "other forever. Set length_buckets to None, or pack=True."
            )
        if self.pack and self.length_buckets:
            raise UserError(
                "Packing fills every row to feature_lengths, so length_buckets have no "
                "use with pack=True. Set one of the two."
            )
        return self.batch_size // num_hosts


def train_dataset(
    task=None,
    feature_lengths=None,
    batching=None,
    long_examples=None,
    *,
    run: TheRun | None = None,
    split="train",
    seed=0,
    steps_per_call=1,
    shard_info=None,
):
    """Endless batches of a task's split.

    Equal arguments give equal batches. An iterator saved at any point in
    `tf.train.Checkpoint(iterator=...)` continues with the next batch. A source that
    calls Python while it reads, as `from_generator`, cannot be saved. Every example is
    read once in an epoch. The shuffle buffer has the task's `shuffle_buffer_size`, and
    no more examples than an epoch. If a task's last steps join, cut or leave out
    examples, as span corruption does, the buffer comes after them and runs across
    epochs.

    Args:
        task: a registered name, or what `get_task` returns; None for the run's.
        feature_lengths: dictionary of ints, one for each feature of the converter; None
            for the run's.
        batching: a `Batching`.
        run: a `Run`.
        long_examples: a `LongExamples`; None for its defaults.
        split: str.
        seed: int, for shuffling, mixing and random preprocessing.
        steps_per_call: int, the leading axis. The steps of an element share a bucket.
        shard_info: None, or a `seqio.ShardInfo`: this host's part of the examples and
            of the batch.

    Returns:
        a `tf.data.Dataset` of dictionaries of int32
        `[steps_per_call, batch_size / num_shards, length]`. Shapes are static, except
        for the lengths of buckets. It has the attributes `over_length` (an `OverLength`
        or None), `vocabularies` and `caches` (see `describe_vocabularies` and
        `describe_caches`).

    Raises:
        ValueError: an unknown split or a split without examples; rates of a mixture
            that are negative, not finite or all 0; packing with buckets;
            an over-long example under "refuse"; no other under "skip"; a batch that
            does not divide among the hosts, or buckets with several hosts.
        FileNotFoundError: a task's data are missing; the error lists all such tasks of
            a mixture.
    """
    _check_batching(batching)
    task, feature_lengths = data_of(run, task, feature_lengths)
    check_feature_lengths(feature_lengths, batching.feature_converter)
    check_reads_inputs(task, feature_lengths, batching.feature_converter)
    check_integers(steps_per_call=steps_per_call)
    batch_size = batching.host_batch_size(shard_info.num_shards if shard_info else 1)
    long_examples = long_examples or LongExamples()
    count = _count_examples(
        task, split, feature_lengths, long_examples.examples_to_count, shard_info
    )
    if isinstance(task, seqio.Mixture):
        _check_rates(task)
    over_length = long_examples.report(count)
    trim = long_examples.handling == "trim"
    most = count.examples if count.complete else None
    late = set()  # names of tasks that are shuffled after their last steps

    def for_training(task):
        task = with_seed(task)
        size = task.shuffle_buffer_size
        if batching.shuffle and size is None:
            raise UserError(
                f"{task.name} has no shuffle_buffer_size, so that it cannot be "
                "shuffled. Give it one, or set Batching.shuffle = False."
            )
        if size and most:
            task = task.replace(shuffle_buffer_size=min(size, most))
        if not batching.shuffle or needs_lengths(task) or task.name in late:
            return _keep_features(task, feature_lengths, trim)
        task = _shuffle_epochs(task, seed)
        return _keep_features(task, feature_lengths, trim, late)

    def read():
        return _change_tasks(task, for_training).get_dataset(
            feature_lengths if trim else whole_lengths(task, feature_lengths),
            split=split,
            shuffle=batching.shuffle,
            seed=seed,
            shard_info=shard_info,
            num_epochs=None,
            trim_output_features=False,
            try_in_mem_cache=False,  # its content would be part of every checkpoint
        )

    dataset = read()
    if late:
        dataset = read()
    if long_examples.handling == "skip":
        dataset = dataset.filter(lambda example: fits(example, feature_lengths))
    elif not trim:
        dataset = dataset.map(refuse_over_length(task, split, feature_lengths))
    dataset = _batch(dataset, feature_lengths, batching, batch_size, steps_per_call)
    options = tf.data.Options()
    options.deterministic = True
    # Tokenizers count as stateful ops, though their state never changes.
    ignore = tf.data.experimental.ExternalStatePolicy.IGNORE
    options.experimental_external_state_policy = ignore
    dataset = dataset.with_options(options).prefetch(2)
    dataset.over_length = over_length
    dataset.vocabularies = describe_vocabularies(task)
    dataset.caches = describe_caches(task, split)
    return dataset


def batch_shapes(batching, feature_lengths):
    """Returns {name: `keras.KerasTensor`} of a step's batch of `train_dataset`.

    Lengths are those of the last bucket. No data are read. Errors are those of
    `train_dataset`.
    """
    _check_batching(batching)
    check_feature_lengths(feature_lengths, batching.feature_converter)
    rows = batching.host_batch_size(1)
    converter = _converter(batching)
    lengths = converter.get_model_feature_lengths(feature_lengths)
    return {
        name: keras.KerasTensor((rows, length), "int32")
        for name, length in lengths.items()
    }


def _converter(batching):
    try:
        return batching.feature_converter(pack=batching.pack)
    except ValueError as error:
        if "PACKING_FEATURE_DTYPES" in str(error):  # seqio's check of its classes
            name = getattr(batching.feature_converter, "__name__", "feature_converter")
            raise UserError(
                f"{name} cannot pack examples. Set Batching.pack = False."
            ) from None
        raise


def _check_batching(batching):
    if not isinstance(batching, Batching):
        raise UserError(
            "batching must be a Batching (in gin: @Batching()). Received: "
            f"batching={batching!r}"
        )


def _check_rates(mixture):
    """Raises a UserError unless the rates of a mixture are shares of its tasks."""
    for part in mixture._sub_mixtures:
        _check_rates(part)
    rates = {
        name: rate(mixture._task_map[name]) if callable(rate) else rate
        for name, rate in mixture.rate_per_task_name.items()
    }
    good = (isinstance(x, numbers.Real) and 0 <= x < math.inf for x in rates.values())
    if not all(good) or not any(rates.values()):
        raise UserError(
            f"The rates of {mixture.name} must be numbers of at least 0, not all of "
            f"them 0. Received: {rates}"
        )


# They hold no Python `if` over tensors, unless they pack.
_GRAPH_CODE = (
    seqio.EncDecFeatureConverter,
    seqio.LMFeatureConverter,
    seqio.PrefixLMFeatureConverter,
)


def _batch(dataset, feature_lengths, batching, batch_size, steps_per_call):
    """Converts examples, batches them, and batches the steps of a call."""
    converter = _converter(batching)
    convert = converter
    if type(converter) in _GRAPH_CODE and not batching.pack:
        # AutoGraph would read this code for 0.6 s and find nothing to convert.
        convert = tf.autograph.experimental.do_not_convert(converter)
    dataset = convert(dataset, feature_lengths)

    def batch_steps(dataset):
        dataset = dataset.batch(batch_size, drop_remainder=True)
        return dataset.batch(steps_per_call, drop_remainder=True)

    if not batching.length_buckets:
        return batch_steps(dataset)
    buckets = LengthBuckets(batching.length_buckets, feature_lengths, converter)
    return dataset.group_by_window(
        key_func=buckets.index,
        reduce_func=lambda index, window: batch_steps(window).map(
            lambda features: buckets.cut(features, index)
        ),
        window_size=steps_per_call * batch_size,
    )


def _shuffle_epochs(task, seed):
    """The task with its shuffle buffer before the examples are repeated.

    It is before the steps that are random, or at the source if the task does not say
    which these are (`seqio.CacheDatasetPlaceholder`).
    """
    size = task.shuffle_buffer_size

    def shuffle(dataset):
        known = int(dataset.cardinality())
        return dataset.shuffle(min(size, known) if known > 0 else size, seed=seed)

    steps = [*task.preprocessors]
    last = task._cache_step_idx - 1 if task.supports_caching else -1
    if last < 0:
        source = _ShuffledSource(task.source, shuffle)
        return task.replace(source=source, shuffle_buffer_size=1)
    step = steps[last]

    @functools.wraps(step)  # seqio looks at its parameters.
    def step_and_shuffle(*args, **kwargs):
        return shuffle(step(*args, **kwargs))

    steps[last] = step_and_shuffle
    return task.replace(preprocessors=steps, shuffle_buffer_size=1)


class _ShuffledSource(seqio.DataSource):
    """A source whose examples, of all its files, are shuffled."""

    def __init__(self, source, shuffle):
        vars(self).update(vars(source))
        self._source, self._shuffle = source, shuffle

    @property
    def splits(self):
        return self._source.splits

    @property
    def supports_arbitrary_sharding(self):
        return self._source.supports_arbitrary_sharding

    def list_shards(self, split):
        return self._source.list_shards(split)

    def num_input_examples(self, split):
        return self._source.num_input_examples(split)

    def get_dataset(self, *args, shuffle=True, **kwargs):
        dataset = self._source.get_dataset(*args, shuffle=shuffle, **kwargs)
        return self._shuffle(dataset) if shuffle else dataset


def _keep_features(task, feature_lengths, cut, late=None):
    """The task with the features that have lengths alone, perhaps cut to these.

    Other features would fill the shuffle buffer, which every checkpoint holds. Adds the
    name of a shuffled task to `late` if its steps change the number of examples, whose
    neighbours may then be parts of one. `late` is None for others.
    """
    without_autograph = tf.autograph.experimental.do_not_convert

    @without_autograph
    def select(example):
        return {name: example[name] for name in feature_lengths}

    @without_autograph
    def shorten(example):
        return {name: x[: feature_lengths[name]] for name, x in example.items()}

    def keep(dataset):
        endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        if late is not None and not endless:
            late.add(task.name)
        return dataset.map(select, num_parallel_calls=_PARALLEL_CALLS)

    def trim(dataset):
        return dataset.map(shorten, num_parallel_calls=_PARALLEL_CALLS)

    added = [keep, trim] if cut else [keep]
    return task.replace(preprocessors=[*task.preprocessors, *added])


def with_seed(task):
    """The task, whose `get_dataset` accepts a seed with any source.

    Positions in its files name no folder.
    """
    source = numbered_files(task.source)
    if isinstance(source, seqio.FunctionDataSource):
        source = _FunctionSource(source._dataset_fn, splits=source.splits)
    return task.replace(source=source)


class _FunctionSource(seqio.FunctionDataSource):
    """A source whose function may lack an argument `seed`, which seqio refuses."""

    def get_dataset(self, split="train", shuffle=True, seed=None, **unused):
        if "seed" in inspect.signature(self._dataset_fn).parameters:
            return self._dataset_fn(split=split, shuffle_files=shuffle, seed=seed)
        return self._dataset_fn(split=split, shuffle_files=False)


def check_split(task, split):
    """Raises a ValueError, with the nearest names, unless `task` has `split`."""
    if has_split(task, split):
        return
    names = sorted({name for t in seqio.get_subtasks(task) for name in splits_of(t)})
    if split.partition("[")[0] in names:
        raise UserError(
            f"{task.name} cannot read the slice {split!r}. Of TensorFlow Datasets, a "
            "task without a list of splits reads slices such as 'train[:100]' and "
            f"'train[50%:]'; others read whole splits: {', '.join(names)}. "
            "max_examples takes the first of a split."
        )
    raise UserError(
        f"{task.name} has no split {split!r}.{nearest(split, names)} It has: "
        f"{', '.join(names)}."
    )


def _count_examples(task, split, feature_lengths, limit, shard_info):
    """Counts long examples; without any example `repeat` would run forever."""
    counts, missing = [], {}
    for subtask in seqio.get_subtasks(task):
        try:
            if not has_split(subtask, split):
                continue
            count = count_over_length(
                subtask, split, feature_lengths, limit, shard_info
            )
        except FileNotFoundError as error:
            if subtask is task:
                raise
            missing[subtask.name] = error
        else:
            counts.append(count)
            if not count.examples:
                raise UserError(NO_EXAMPLES.format(subtask.name, split))
    if missing:
        texts = {name: str(error).rstrip(".") for name, error in missing.items()}
        named = (x if x.startswith(k) else f"{k}: {x}" for k, x in texts.items())
        raise MissingFileError(
            f"Of the tasks of {task.name}, {len(missing)} cannot be read. "
            f"{'; '.join(named)}. Or train without them: Run.without = "
            f"{[*missing]}"
        )
    check_split(task, split)
    return join_counts(task, counts)


NO_EXAMPLES = (
    "{} {} has no examples. Check its files, and that its preprocessors do not filter "
    "all of them out."
)
