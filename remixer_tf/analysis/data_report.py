"""Reports on the examples of a task, by `remixer_tf data_report`."""

import collections

import numpy as np
import seqio

from remixer_tf.analysis import data_statistics as statistics
from remixer_tf.data.classification import ClassNames
from remixer_tf.data.codec import Codec
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.lengths import format_lengths, has_split, needs_lengths
from remixer_tf.data.texts import describe_changes, writes_answers
from remixer_tf.data.vocabularies import is_text
from remixer_tf.errors import UserError
from remixer_tf.tables import write_table

_BAR = 40  # characters
_SHOWN_IDS = 64


def write_task(
    task,
    file,
    *,
    split="train",
    feature_lengths=None,
    feature_converter=seqio.EncDecFeatureConverter,
    length_buckets=None,
    max_examples=10_000,
    shown_examples=3,
):
    """Writes a report on the examples of a task, or of each task of a mixture.

    Raises a ValueError if the split is unknown or empty, the task lacks features that
    the converter reads, or makes its examples for lengths that are not given.

    Args:
        task, split, feature_lengths: see `train_dataset`; without lengths, the
            suggested ones.
        file: a text file to write to.
        feature_converter, length_buckets: see `Batching`.
        max_examples: int, the most examples to read of a task.
        shown_examples: int.
    """
    subtasks = seqio.get_subtasks(task)
    if isinstance(task, seqio.Mixture):
        rates = {subtask.name: float(task.get_rate(subtask)) for subtask in subtasks}
        rows = [
            [name, f"{rate:,.6g}", _percent(rate / sum(rates.values()))]
            for name, rate in rates.items()
        ]
        write_table(file, "text", task.name, ["task", "rate", "share"], rows)
    for subtask in subtasks:
        rows = [
            [name, statistics.split_size(subtask, name, max_examples)]
            for name in subtask.splits
        ]
        write_table(file, "text", subtask.name, ["split", "examples"], rows)
        if not has_split(subtask, split) and len(subtasks) > 1:
            file.write(f"{subtask.name} has no split {split!r}.\n\n")
            continue
        report = _TaskReport(
            subtask, split, feature_lengths, feature_converter, max_examples
        )
        report.write(file, shown_examples, length_buckets)


class _TaskReport:
    """The report on a split of a task, read once. Arguments: see `write_task`."""

    def __init__(self, task, split, feature_lengths, converter, max_examples):
        self._task, self._given, self._converter = task, feature_lengths, converter
        self._vocabulary = {k: x.vocabulary for k, x in task.output_features.items()}
        self._fits = needs_lengths(task)
        self._split = split
        given = feature_lengths or {}
        if self._fits and not given:
            raise UserError(
                f"{task.name} makes its examples for the lengths of a run. Name the "
                "run with --gin_file, or set --gin.FEATURE_LENGTHS=\"{'inputs': 512, "
                "'targets': 512}\"."
            )
        examples = read_examples(task, split, given, max_examples + 1, trim=False)
        read = f"all {len(examples):,}"
        if len(examples) > max_examples:
            read = f"a sample, the first {max_examples:,},"
        self._title = f"{task.name} {split}: {read} examples were read."
        self._examples = examples = examples[:max_examples]
        names = list(given or converter.TASK_FEATURES)
        if missing := [name for name in names if name not in examples[0]]:
            raise UserError(
                f"{task.name} has no feature {', '.join(missing)}, which "
                f"{converter.__name__} reads. Name the run with --gin_file, or "
                "set --gin.Batching.feature_converter: a language model's is "
                "@LanguageModelFeatureConverter."
            )
        self._lengths = {
            name: np.array([len(example[name]) for example in examples])
            for name in names
        }
        self._text = [n for n in names if is_text(task.output_features[n])]
        self._suggested = {
            # Classes and spans have one length, token types that of their text.
            name: statistics.suggest_length(lengths)
            if name in self._text or lengths.min() < lengths.max()
            else int(lengths.max())
            for name, lengths in self._lengths.items()
        }

    def write(self, file, shown_examples, length_buckets):
        file.write(f"{self._title}\n\n")
        for number, example in enumerate(self._examples[:shown_examples], 1):
            file.write(f"example {number}\n")
            file.writelines(f"  {line}\n" for line in self._lines_of(example))
            file.write("\n")
        self._write_lengths(file)
        for name in self._lengths:
            vocabulary = self._vocabulary[name]
            if name in self._text:
                file.write(f"\n{name}: tokens, examples\n")
                write_histogram(file, self._lengths[name])
            elif isinstance(vocabulary, ClassNames):
                file.write("\n")
                ids = [example[name].tolist() for example in self._examples]
                write_classes(file, [vocabulary.decode(row) for row in ids])
        self._write_rows(file, length_buckets)
        self._write_suggestions(file)

    def _lines_of(self, example):
        for name in self._lengths:
            ids = example[name]
            if name not in self._text:
                yield f"{name}: {_shorten(map(str, ids.tolist()))}"
                continue
            text = example.get(f"{name}_pretokenized")
            if isinstance(text, bytes):
                yield f"{name}: {text.decode(errors='replace')}"
            pieces = statistics.pieces(ids, self._vocabulary[name])
            pairs = zip(pieces, ids, strict=True)
            shown = _shorten(piece if i < 0 else f"{piece}:{i}" for piece, i in pairs)
            yield f"{name}, piece:id: {shown}"

    def _write_lengths(self, file):
        header = ["feature", "mean"]
        header += ["longest" if p == 100 else f"{p}%" for p in statistics.PERCENTILES]
        header += ["unknown pieces", "examples with them"]
        header += ["run's length", "longer"] * bool(self._given)
        rows = []
        for name in self._text:
            lengths = self._lengths[name]
            found = (statistics.percentile(lengths, p) for p in statistics.PERCENTILES)
            ids = [example[name] for example in self._examples]
            unknown = statistics.unknown(ids, self._vocabulary[name])
            row = [name, f"{lengths.mean():.1f}", *(f"{n:,}" for n in found)]
            row += map(_percent, unknown)
            if self._given:
                length = self._given[name]
                row += [f"{length:,}", _percent(np.mean(lengths > length))]
            rows.append(row)
        write_table(file, "text", "Lengths in tokens, EOS included", header, rows)
        if self._given:
            share = _percent(statistics.share_over(self._lengths, self._given))
            file.write(
                f"{share} of the examples are longer than "
                f"{format_lengths(self._given)} in a feature: they are trimmed, unless "
                "LongExamples.handling says otherwise.\n"
            )
        if writes_answers(self._task) and not self._fits:
            texts = (x.get("targets_pretokenized") for x in self._examples)
            texts = [x.decode() for x in texts if isinstance(x, bytes)]
            if changes := describe_changes(self._task, self._split, texts):
                file.write(f"{changes}.\n")

    def _write_rows(self, file, buckets):
        lengths = self._given or self._suggested
        whose = "of the run" if buckets else "suggested below"
        buckets = buckets or statistics.suggest_buckets(self._lengths, lengths)
        ways = {"one example a row": {}}
        if self._converter.PACKING_FEATURE_DTYPES:
            ways["packed"] = {"pack": True}
        if buckets:
            several = f"{len(buckets)} length bucket{'s' * (len(buckets) > 1)}"
            name = f"in {several}, {whose}, and the longest"
            ways[name] = {"length_buckets": buckets}
        codec = Codec(self._task, lengths, self._converter)
        rows = []
        for way, options in ways.items():
            share, number = statistics.share_of_padding(
                self._examples, codec, **options
            )
            rows.append([way, f"{number:,}", _percent(share)])
        file.write("\n")
        title = f"Rows of {format_lengths(lengths)}"
        write_table(file, "text", title, ["way", "rows", "padding"], rows)

    def _write_suggestions(self, file):
        if self._fits:
            file.write("The task makes its examples for the lengths of the run.\n\n")
            return
        share = _percent(statistics.share_over(self._lengths, self._suggested))
        file.write(
            f"FEATURE_LENGTHS = {self._suggested}\n"
            "# suggested: the 99th percentile, rounded up to a multiple of 8; "
            f"{share} of the examples are longer\n"
        )
        lengths = self._given or self._suggested
        if buckets := statistics.suggest_buckets(self._lengths, lengths):
            file.write(
                f"LENGTH_BUCKETS = {buckets}\n"
                "# suggested: the 50th, 75th and 90th percentile, rounded up likewise\n"
            )
        file.write("\n")


def write_images(source, file, *, split="train", max_examples=10_000):
    """Writes the splits, and classes and sizes of up to `max_examples` random images.

    For the source see `remixer_tf.data.images`, for the others `write_task`.
    """
    rows = [[name, f"{source.num_examples(name):,}"] for name in source.splits]
    write_table(file, "text", source.name, ["split", "images"], rows)
    size = source.num_examples(split)
    count = min(size, max_examples)
    # Drawn, since a folder's images are in the order of their classes.
    examples = [
        (*example["image"].shape[:2], source.class_names[example["label"]])
        for example in source.draw(split).take(count).as_numpy_iterator()
    ]
    heights, widths, classes = zip(*examples, strict=True)
    read = f"all {count:,}" if count == size else f"a sample, {count:,} at random,"
    file.write(f"{source.name} {split}: {read} images were read.\n\n")
    write_classes(file, classes, source.class_names)
    for name, pixels in (("height", heights), ("width", widths)):
        file.write(f"\n{name}: pixels, images\n")
        write_histogram(file, pixels)


def write_histogram(file, values):
    """Writes a line for each bin of `statistics.histogram`, with a bar of '#'."""
    bins = statistics.histogram(values)
    most = max(count for _, _, count in bins)
    width = len(f"{bins[-1][1]:,}")
    for first, last, count in bins:
        bar = "#" * round(_BAR * count / most)
        label = f"{first:>{width},}-{last:>{width},}"
        file.write(f"  {label} |{bar:<{_BAR}}| {count:,}\n")


def write_classes(file, classes, names=()):
    """Writes a table of the counts of classes, those of `names` even if 0."""
    counts = dict.fromkeys([*names, *sorted(set(classes))], 0)
    counts |= collections.Counter(classes)
    rows = [[n, f"{k:,}", _percent(k / len(classes))] for n, k in counts.items()]
    write_table(file, "text", "", ["class", "examples", "share"], rows)


def _percent(share):
    return f"{100 * share:.2f}%"


def _shorten(words):
    words = list(words)
    more = len(words) - _SHOWN_IDS
    end = f" ... and {more:,} more" if more > 0 else ""
    return " ".join(words[:_SHOWN_IDS]) + end
