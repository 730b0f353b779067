"""Lengths of examples: how many exceed the model's, and which bucket holds one."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import seqio
import tensorflow as tf
from absl import logging

from remixer_tf.arguments import NonNegativeInt, Text, check_fields, checked, instance
from remixer_tf.data.failures import fail_unless, how_to_fetch, no_dataset, reading
from remixer_tf.data.kinds import ShardInfo, Task
from remixer_tf.data.texts import (
    MOST_TARGETS,
    decode_text,
    describe_changes,
    features_of_text,
    writes_answers,
)
from remixer_tf.errors import MissingFileError, UserError, check_choices, check_integers
from remixer_tf.waiting import each

_FIRST = 5  # over-long examples that are named


class OverLength(NamedTuple):
    """How many examples of a split are longer than `feature_lengths`."""

    task: str
    split: str
    feature_lengths: dict
    examples: int  # counted
    over: int  # with a feature longer than its length, EOS included
    longest: dict  # feature -> int
    complete: bool  # False if the count stopped at its limit
    first: tuple = ()  # the first few over: "line 3" (the feature `line`), "example 3"
    handling: str = "trimmed"  # or "skipped"
    changes: tuple = ()  # of tasks, see `describe_changes`

    def __str__(self):
        of = f"{self.examples:,}" if self.complete else f"the first {self.examples:,}"
        return (
            f"{self.task} {self.split}: {self.over:,} of {of} examples are longer "
            f"than {format_lengths(self.feature_lengths)} "
            f"(longest: {format_lengths(self.longest)}"
            + (f"; first: {', '.join(self.first)})" if self.first else ")")
        )


def format_lengths(lengths):
    """Writes `{"inputs": 24, "targets": 104}` as `inputs 24 / targets 104`."""
    return " / ".join(f"{name} {length}" for name, length in lengths.items())


@checked
def count_over_length(
    task: Task,
    split: Text,
    feature_lengths: Annotated[Mapping, instance(Mapping)],
    limit: NonNegativeInt | None = None,
    shard_info: ShardInfo | None = None,
):
    """Counts the examples that are longer than `feature_lengths`: an `OverLength`.

    EOS counts. seqio trims such examples without a message. A preprocessor that cannot
    work without lengths (T5's span corruption) gets `feature_lengths`; all others see
    whole examples. `limit` is the most examples that are counted of each task of a
    mixture; None for all. For the other arguments see `train_dataset`.

    Raises a ValueError if one of the first texts is not UTF-8, see `decode_text`.
    """
    if isinstance(task, seqio.Mixture):
        options = split, feature_lengths, limit, shard_info
        tasks = [t for t in seqio.get_subtasks(task) if has_split(t, split)]
        return join_counts(task, [count_over_length(t, *options) for t in tasks])
    with reading(task, split):
        return _count_task(task, split, feature_lengths, limit, shard_info)


def _count_task(task, split, feature_lengths, limit, shard_info):
    examples, over, complete, first = 0, 0, True, []
    longest, limits = [0] * len(feature_lengths), list(feature_lengths.values())
    dataset = task.get_dataset(
        whole_lengths(task, feature_lengths),
        split=split,
        shuffle=False,
        shard_info=shard_info,
        trim_output_features=False,
        try_in_mem_cache=False,
    )
    spec, read = dataset.element_spec, {}
    has_lines = _is_scalar(spec.get("line"))
    place = "line" if has_lines else "example"
    names = [
        name
        for name in features_of_text(task)
        if _is_scalar(spec.get(f"{name}_pretokenized"), tf.string)
    ]

    @tf.autograph.experimental.do_not_convert
    def measure(index, example):
        texts = {name: example[f"{name}_pretokenized"] for name in names}
        few = index <= MOST_TARGETS
        texts = {name: tf.where(few, text, "") for name, text in texts.items()}
        number = example["line"] if has_lines else index
        return _lengths_of(example, feature_lengths), number, texts

    dataset = dataset.enumerate(1).map(measure).take(-1 if limit is None else limit + 1)
    blocks = dataset.batch(1024).as_numpy_iterator()
    what = f"{task.name} {split}: its examples are read, to count long ones"
    for lengths, places, texts in each(blocks, what):
        if limit is not None and examples + len(lengths) > limit:
            complete, lengths = False, lengths[: limit - examples]
        for name in names if examples < MOST_TARGETS else ():
            read[name] = [
                decode_text(text, task, split, f"{place} {_plain(number)}")
                for text, number in zip(texts[name], places, strict=True)
            ][: len(lengths)]
        examples += len(lengths)
        too_long = (lengths > limits).any(axis=1)
        over += int(too_long.sum())
        some = places[: len(lengths)][too_long][: _FIRST - len(first)]
        first += [f"{place} {_plain(number)}" for number in some]
        longest = [max(x) for x in zip(longest, *lengths.tolist(), strict=True)]
    changes = None
    if writes_answers(task) and not needs_lengths(task):
        changes = describe_changes(task, split, read.get("targets", ()))
    if shard_info is not None and shard_info.num_shards > 1:
        split = f"{split}, part {shard_info.index + 1} of {shard_info.num_shards},"
    return OverLength(
        task.name,
        split,
        dict(feature_lengths),
        examples,
        over,
        dict(zip(feature_lengths, longest, strict=True)),
        complete,
        tuple(first),
        changes=(changes,) if changes else (),
    )


def _is_scalar(spec, dtype=None):
    """Whether a feature has one value for each example."""
    scalar = isinstance(spec, tf.TensorSpec) and spec.shape.rank == 0
    return scalar and dtype in (None, spec.dtype)


def _plain(number):
    """The text of what numbers an example."""
    return number.decode(errors="replace") if isinstance(number, bytes) else number


def join_counts(task, counts):
    """The `OverLength` of a task or mixture from those of its tasks, a list."""
    if isinstance(task, seqio.Task):
        return counts[0]
    first = [f"{count.task} {place}" for count in counts for place in count.first]
    return counts[0]._replace(
        task=task.name,
        examples=sum(count.examples for count in counts),
        over=sum(count.over for count in counts),
        longest={
            name: max(count.longest[name] for count in counts)
            for name in counts[0].longest
        },
        complete=all(count.complete for count in counts),
        first=tuple(first[:_FIRST]),
        changes=sum((count.changes for count in counts), ()),
    )


def has_split(task, split):
    """Whether a task or mixture has `split`, which TFDS may read as a slice."""
    return any(
        split in splits_of(subtask) or _is_slice(subtask, split)
        for subtask in seqio.get_subtasks(task)
    )


def splits_of(task):
    """Returns the splits of a `seqio.Task`, whose TFDS dataset must be there."""
    source = task.source
    try:
        if not isinstance(source, seqio.TfdsDataSource) or source.splits:
            return task.splits
    except no_dataset() as error:
        reason = str(error).splitlines()[0]
        raise MissingFileError(
            f"{task.name} reads TensorFlow Datasets: {reason}"
        ) from error
    name, folder = source.tfds_dataset.name, source.tfds_dataset.builder.data_dir
    raise MissingFileError(
        f"{task.name} reads {name} of TensorFlow Datasets, and there is no {folder}. "
        f"Fetch it: {how_to_fetch(name)}"
    )


def _is_slice(task, split):
    """Whether `split` is a slice, as 'train[:2]', that the task's source can read."""
    name, bracket, _ = split.partition("[")
    if not bracket or not isinstance(task.source, seqio.TfdsDataSource):
        return False
    if name not in task.splits or task.source.tfds_dataset._split_map:
        return False
    import tensorflow_datasets as tfds  # late: `remixer_tf.imports`

    try:
        tfds.core.ReadInstruction.from_spec(split)
    except (AssertionError, ValueError):
        return False
    return "+" not in split


def whole_lengths(task, feature_lengths):
    """The lengths with which `task` gives whole examples: None where possible."""
    return feature_lengths if needs_lengths(task) else None


def needs_lengths(task):
    """Whether `task` makes its examples for lengths, as span corruption does."""
    arguments = [
        inspect.signature(preprocessor).parameters.get("sequence_length")
        for subtask in seqio.get_subtasks(task)
        for preprocessor in subtask.preprocessors
    ]
    return any(x is not None and x.default is x.empty for x in arguments)


def check_feature_lengths(feature_lengths, feature_converter=None):
    """Raises a ValueError unless it has a positive integer for each feature read."""
    if not isinstance(feature_lengths, Mapping):
        raise UserError(
            "feature_lengths must be a dictionary such as {'inputs': 64, 'targets': "
            "64}. "
            f"Received: feature_lengths={feature_lengths!r}"
        )
    check_integers(**{f"feature_lengths[{k!r}]": n for k, n in feature_lengths.items()})
    read = getattr(feature_converter, "TASK_FEATURES", {})
    if missing := [name for name in read if name not in feature_lengths]:
        raise UserError(
            f"feature_lengths must have a length for each of {', '.join(read)}: it has "
            f"none for {', '.join(missing)}. Received: "
            f"feature_lengths={dict(feature_lengths)!r}"
        )


REMEDY = "Raise feature_lengths, or set LongExamples.handling to trim or skip."


@dataclasses.dataclass(frozen=True)
class LongExamples:
    """How to handle examples that are longer than the model reads, EOS included.

    Attributes:
        handling: str. "trim" cuts them as T5 does; EOS is kept if the task's last
            preprocessor is `append_eos_after_trim`, and lost if it is `append_eos`.
            "skip" leaves them out. "refuse" raises: at once if the count finds one,
            else when one arrives, see `data_errors`.
        count_limit: int, how many examples of each task to count at the start; 0 does
            not count. "skip" counts all.

    Another handling is a ValueError, and "skip" without a count.
    """

    handling: str = "trim"
    count_limit: NonNegativeInt = 1000

    def __post_init__(self):
        check_fields(self)
        names = ("trim", "skip", "refuse")
        check_choices(names, **{"LongExamples.handling": self.handling})
        if self.handling == "skip" and not self.count_limit:
            raise UserError(
                "LongExamples.handling = 'skip' reports how many examples it leaves "
                "out, and count_limit=0 counts none. Set one of the two otherwise."
            )

    @property
    def examples_to_count(self):
        """The limit of the count: None for all; at least 1, to see if there is any."""
        return None if self.handling == "skip" else max(self.count_limit, 1)

    def report(self, count):
        """Logs an `OverLength` and returns it; returns None if `count_limit` is 0.

        Raises a ValueError if "refuse" meets a long example, or "skip" no other.
        """
        if not self.count_limit:
            return None
        if count.over and self.handling == "refuse":
            raise UserError(f"{count}. {REMEDY}")
        if self.handling == "skip":
            count = count._replace(handling="skipped")
            if count.over == count.examples:
                raise UserError(f"{count}: none is left. Raise feature_lengths.")
        log = logging.warning if count.over else logging.info
        log("%s%s", count, f": they are {count.handling}" if count.over else "")
        warn_of_changes(count)
        return count


def warn_of_changes(count):
    """Logs a warning of each task of an `OverLength` whose targets change."""
    for change in count.changes:
        logging.warning("%s", change)


def _lengths_of(example, names):
    return tf.stack([tf.shape(example[name])[0] for name in names])


def fits(example, feature_lengths):
    """Whether every feature is within its length, a scalar bool."""
    lengths = _lengths_of(example, feature_lengths)
    return tf.reduce_all(lengths <= list(feature_lengths.values()))


def refuse_over_length(task, split, feature_lengths):
    """Returns a map function that fails on an example over `feature_lengths`."""
    text = (
        f"over-length example: an example of {task.name} {split} is longer than "
        f"{format_lengths(feature_lengths)}: it has "
        + " / ".join(f"{name} {{}}" for name in feature_lengths)
        + f". {REMEDY}"
    )

    def check(example):
        lengths = tf.unstack(_lengths_of(example, feature_lengths))
        message = tf.strings.format(text, lengths)
        with tf.control_dependencies(
            [fail_unless(fits(example, feature_lengths), message)]
        ):
            return {name: tf.identity(x) for name, x in example.items()}

    return check


class LengthBuckets:
    """Padded lengths, from the shortest to the model's.

    `buckets` is a list of dictionaries such as `{"inputs": 16, "targets": 32}`, each at
    least as long as the one before in every feature, else a ValueError.
    `feature_lengths` is the last and need not be listed. The `feature_converter`, a
    `seqio.FeatureConverter`, knows the model's features.
    """

    def __init__(self, buckets, feature_lengths, feature_converter):
        several = isinstance(buckets or [], (list, tuple))
        if not several or not all(isinstance(x, Mapping) for x in buckets or ()):
            raise UserError(
                "length_buckets must be None or a list of dictionaries such as "
                f"{dict(feature_lengths)}. Received: length_buckets={buckets!r}"
            )
        buckets = [dict(bucket) for bucket in buckets or ()]
        if not buckets or buckets[-1] != dict(feature_lengths):
            buckets.append(dict(feature_lengths))
        for i, bucket in enumerate(buckets):
            shorter = buckets[max(i - 1, 0)]
            if bucket.keys() != feature_lengths.keys() or any(
                not 0 < shorter[name] <= bucket[name] for name in bucket
            ):
                raise UserError(
                    "length_buckets must name the features of feature_lengths, from "
                    "the shortest bucket to the longest, none longer than "
                    f"{dict(feature_lengths)}. Received: {buckets}."
                )
        self._lengths = {}  # feature of the model -> its lengths, [num_buckets]
        for bucket in buckets:
            for name, n in feature_converter.get_model_feature_lengths(bucket).items():
                self._lengths.setdefault(name, []).append(n)
        self.buckets = buckets

    def index(self, features):
        """First bucket that holds `features`, dictionary of `[..., length]`: int64."""
        fits = tf.ones([len(self.buckets)], tf.bool)
        for name, lengths in self._lengths.items():
            if name == "decoder_input_tokens":  # the targets, shifted by one
                continue
            positions = tf.range(1, tf.shape(features[name])[-1] + 1)
            used = tf.reduce_max(tf.where(features[name] != 0, positions, 0))
            fits = tf.logical_and(fits, used <= tf.constant(lengths))
        return tf.argmax(tf.cast(fits, tf.int32))

    def cut(self, features, index):
        """Cuts the padding beyond bucket `index` off `features`."""
        return {
            name: x[..., : tf.constant(self._lengths[name])[index]]
            if name in self._lengths
            else x
            for name, x in features.items()
        }
