import itertools
import math
import os

import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf.data import epochs, eval_batches, pipeline
from remixer_tf.data.classification import ClassifierFeatureConverter
from remixer_tf.data.codec import Codec
from remixer_tf.data.failures import data_errors
from remixer_tf.data.language_model import LanguageModelFeatureConverter
from remixer_tf.data.lengths import count_over_length
from remixer_tf.data.masked_lm import concat_and_split
from remixer_tf.errors import UserError
from tests.data.toy_tasks import VOCABULARY, eval_dataset, rows, toy_task, train_dataset

LENGTHS = {"inputs": 8, "targets": 12}
BUCKETS = [{"inputs": 4, "targets": 6}]
# 60 different examples; those with both lengths small enough go to the short bucket.
TRAIN = rows([(1 + i % 7, 1 + i % 11) for i in range(60)])

PIECES = os.path.join(
    os.path.dirname(seqio.__file__), "test_data", "sentencepiece", "sentencepiece.model"
)


def elements(number, task=None, **kwargs):
    task = task or toy_task({"train": TRAIN})
    kwargs = {
        "feature_lengths": LENGTHS,
        "batch_size": 4,
        "count_limit": 0,  # counting has tests of its own
        **kwargs,
    }
    return list(
        itertools.islice(train_dataset(task, **kwargs).as_numpy_iterator(), number)
    )


def texts(batch, key="encoder_input_tokens"):
    """The texts in a batch's rows."""
    tokens = batch[key].reshape(-1, batch[key].shape[-1])
    return [VOCABULARY.decode(row.tolist()) for row in tokens]


def assert_equal(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.keys() == y.keys()
        for key in x:
            np.testing.assert_array_equal(x[key], y[key])


def test_a_batch_is_the_converted_examples():
    task = toy_task({"train": [("a", "bc"), ("def", "g")]})
    (batch,) = elements(
        1,
        task,
        feature_lengths={"inputs": 5, "targets": 4},
        batch_size=2,
        shuffle=False,
    )
    want = {
        "encoder_input_tokens": [[[100, 1, 0, 0, 0], [103, 104, 105, 1, 0]]],
        "decoder_input_tokens": [[[0, 101, 102, 1], [0, 106, 1, 0]]],
        "decoder_target_tokens": [[[101, 102, 1, 0], [106, 1, 0, 0]]],
        "decoder_loss_weights": [[[1, 1, 1, 0], [1, 1, 0, 0]]],
    }
    assert {key: value.tolist() for key, value in batch.items()} == want
    assert {value.dtype for value in batch.values()} == {np.dtype("int32")}


def test_the_seed_decides_the_order_and_steps_per_call_only_groups_the_batches():
    single = elements(6, seed=1)
    triple = elements(2, seed=1, steps_per_call=3)
    other = elements(6, seed=2)
    assert triple[0]["encoder_input_tokens"].shape == (3, 4, 8)
    for key in single[0]:
        np.testing.assert_array_equal(
            np.concatenate([x[key] for x in single]),
            np.concatenate([x[key] for x in triple]),
        )
    assert [texts(x) for x in single] != [texts(x) for x in other]


def test_a_batch_larger_than_the_split_repeats_it():
    task = toy_task({"train": rows([(2, 2), (3, 3), (4, 4)])})
    (batch,) = elements(1, task, batch_size=7, shuffle=False)
    assert texts(batch) == ["ab", "bcd", "cdef", "ab", "bcd", "cdef", "ab"]


def test_an_example_goes_to_the_first_bucket_that_holds_both_features():
    batches = elements(12, length_buckets=BUCKETS, steps_per_call=2)
    shapes = set()
    for batch in batches:
        inputs, targets = batch["encoder_input_tokens"], batch["decoder_target_tokens"]
        assert inputs.shape[:2] == targets.shape[:2] == (2, 4)
        assert batch["decoder_loss_weights"].shape == targets.shape
        shapes.add((inputs.shape[-1], targets.shape[-1]))
        used = np.stack([(x > 0).sum(-1).ravel() for x in (inputs, targets)], axis=-1)
        short = (used <= [4, 6]).all(axis=-1)
        assert short.all() if inputs.shape[-1] == 4 else not short.any()
    assert shapes == {(4, 6), (8, 12)}


def test_buckets_lose_no_example():
    task = toy_task({"train": TRAIN[:8]})
    batches = elements(8, task, length_buckets=BUCKETS, batch_size=1, shuffle=False)
    pairs = [(texts(x)[0], texts(x, "decoder_target_tokens")[0]) for x in batches]
    assert sorted(pairs) == sorted(TRAIN[:8])


@pytest.mark.parametrize(
    "bucket",
    [{"inputs": 9, "targets": 6}, {"inputs": 4}, {"inputs": 0, "targets": 6}],
)
def test_a_bad_bucket_is_an_error(bucket):
    with pytest.raises(ValueError, match="from the shortest bucket to the longest"):
        elements(1, length_buckets=[bucket])


def test_packed_rows_hold_several_examples_with_segments_and_positions():
    task = toy_task({"train": [("a", "bc"), ("def", "g")]})
    (batch,) = elements(1, task, batch_size=1, pack=True, shuffle=False)
    want = {
        "encoder_input_tokens": [100, 1, 103, 104, 105, 1, 100, 1],
        "encoder_segment_ids": [1, 1, 2, 2, 2, 2, 3, 3],
        "encoder_positions": [0, 1, 0, 1, 2, 3, 0, 1],
        "decoder_input_tokens": [0, 101, 102, 0, 106, 0, 101, 102, 0, 0, 0, 0],
        "decoder_target_tokens": [101, 102, 1, 106, 1, 101, 102, 1, 0, 0, 0, 0],
        "decoder_loss_weights": [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0],
        "decoder_segment_ids": [1, 1, 1, 2, 2, 3, 3, 3, 0, 0, 0, 0],
        "decoder_positions": [0, 1, 2, 0, 1, 0, 1, 2, 0, 0, 0, 0],
    }
    assert {key: value[0, 0].tolist() for key, value in batch.items()} == want


def test_packing_beside_buckets_is_an_error():
    with pytest.raises(ValueError, match="Set one of the two"):
        elements(1, pack=True, length_buckets=BUCKETS)


@pytest.mark.parametrize(
    "kwargs",
    [
        pytest.param({"length_buckets": BUCKETS}, id="buckets", marks=pytest.mark.slow),
        pytest.param(
            {"pack": True, "handling": "refuse"},
            id="packing_and_refuse",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_iterator_restored_mid_epoch_gives_the_batches_still_to_come(
    kwargs, tmp_path
):
    def iterator():
        task = toy_task({"train": TRAIN}, shuffle_buffer_size=20)
        if "length_buckets" in kwargs:  # its tokenizer is a stateful op
            task = pipeline.get_task(task, seqio.SentencePieceVocabulary(PIECES))
        return iter(
            train_dataset(
                task,
                feature_lengths=LENGTHS,
                batch_size=3,
                steps_per_call=2,
                count_limit=0,
                **kwargs,
            )
        )

    def take(iterator, number):
        return [
            {k: v.numpy() for k, v in next(iterator).items()} for _ in range(number)
        ]

    first = iterator()
    start = take(first, 4)
    path = tf.train.Checkpoint(iterator=first).save(str(tmp_path / "checkpoint"))
    want = take(first, 25)  # more than an epoch
    second = iterator()
    tf.train.Checkpoint(iterator=second).restore(path).assert_consumed()
    assert_equal(take(second, 25), want)
    key = "encoder_input_tokens"
    assert not np.array_equal(start[-1][key], want[0][key])


def numbered(number, buffer, last=seqio.preprocessors.append_eos):
    """A task of so many examples: 0, 1, ..., in three letters each."""
    pairs = [(f"{i:03}", "a") for i in range(number)]
    return toy_task({"train": pairs}, last=last, shuffle_buffer_size=buffer)


def numbers(task, steps, **options):
    lengths = {"inputs": 4, "targets": 2}
    batches = iter(
        train_dataset(task, feature_lengths=lengths, batch_size=1, **options)
    )
    rows = [next(batches)["encoder_input_tokens"][0, 0].numpy() for _ in range(steps)]
    found = [int("".join(chr(x - 3) for x in row if x > 2)) for row in rows]
    return found, batches


@pytest.mark.parametrize("buffer", [7, 1000])
def test_an_epoch_has_every_example_once(buffer):
    found, _ = numbers(numbered(20, buffer), 60, count_limit=0)
    epochs = [found[i : i + 20] for i in (0, 20, 40)]
    assert all(sorted(epoch) == [*range(20)] for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_buffer_holds_the_data_once(tmp_path):
    """tf.data itself fills 5,000 places with 25 copies of 200 examples."""
    sizes = {}
    for buffer in (200, 5000):
        _, batches = numbers(numbered(200, buffer), 1, count_limit=0)
        path = str(tmp_path / str(buffer))
        tf.train.Checkpoint(iterator=batches).write(path)
        sizes[buffer] = sum(p.stat().st_size for p in tmp_path.glob(f"{buffer}.*"))
    assert sizes[5000] < 1.1 * sizes[200]


def test_parts_of_one_example_are_shuffled_apart():
    """Where a task's last steps make several examples of one, which it cannot say."""

    def twice(dataset):
        return dataset.flat_map(lambda x: tf.data.Dataset.from_tensors(x).repeat(2))

    found, _ = numbers(numbered(50, 100, last=twice), 100, count_limit=0)
    pairs = sum(a == b for a, b in zip(found, found[1:], strict=False))
    assert pairs < 10 and max(found.count(i) for i in range(50)) > 1


def test_hosts_share_the_examples():
    task = toy_task({"train": TRAIN})
    read = []
    for index in range(2):
        batches = elements(
            15,
            task,
            batch_size=4,
            shuffle=False,
            shard_info=seqio.ShardInfo(index=index, num_shards=2),
        )
        read.append(
            {
                pair
                for x in batches
                for pair in zip(
                    texts(x), texts(x, "decoder_target_tokens"), strict=True
                )
            }
        )
    assert not read[0] & read[1]
    assert read[0] | read[1] == set(TRAIN)


def test_epochs_in_steps():
    task = toy_task({"train": TRAIN})
    source = seqio.FunctionDataSource(
        lambda split, shuffle_files: None,
        splits=["train"],
        num_input_examples={"train": 60},
    )
    task = task.replace(source=source)
    assert epochs.examples_per_epoch(task) == 60
    assert epochs.steps_in_epochs(1.5, task, batch_size=8) == 12  # 11.25
    assert epochs.steps_in_epochs(1.5, task, batch_size=8, steps_per_call=5) == 15
    with pytest.raises(ValueError, match="does not tell how many examples 'train' has"):
        epochs.examples_per_epoch(toy_task({"train": TRAIN}))
    joined = task.replace(preprocessors=[*task.preprocessors, concat_and_split])
    with pytest.raises(ValueError, match="toy joins or cuts .* Set TRAIN_STEPS"):
        epochs.examples_per_epoch(joined)


LONG = rows([(3, 3), (7, 12), (8, 3), (7, 11), (9, 20)])  # with EOS: 4/4, 8/13, ...


def test_over_length_counts_eos_and_tells_the_longest():
    task = toy_task({"train": LONG})
    count = count_over_length(task, "train", LENGTHS)
    assert (count.examples, count.over, count.complete) == (5, 3, True)
    assert count.longest == {"inputs": 10, "targets": 21}
    assert str(count) == (
        "toy train: 3 of 5 examples are longer than inputs 8 / targets 12 "
        "(longest: inputs 10 / targets 21; first: example 2, example 3, example 5)"
    )


@pytest.mark.parametrize("limit, over, complete", [(2, 1, False), (5, 3, True)])
def test_the_count_stops_at_its_limit(limit, over, complete):
    count = count_over_length(toy_task({"train": LONG}), "train", LENGTHS, limit)
    assert (count.examples, count.over, count.complete) == (limit, over, complete)
    assert ("of the first 2 examples" in str(count)) == (not complete)


def test_a_start_counts_a_thousand_examples_and_all_of_what_it_leaves_out():
    task = toy_task({"train": rows([(3, 3)] * 1200 + [(9, 3)])})
    options = {"feature_lengths": LENGTHS, "batch_size": 4}
    start = train_dataset(task, **options).over_length
    assert (start.examples, start.over, start.complete) == (1000, 0, False)
    skipped = train_dataset(task, **options, handling="skip").over_length
    assert (skipped.examples, skipped.over, skipped.complete) == (1201, 1, True)


def test_the_count_sees_through_a_preprocessor_that_trims():
    last = seqio.preprocessors.append_eos_after_trim
    count = count_over_length(toy_task({"train": LONG}, last=last), "train", LENGTHS)
    assert count.over == 3


@pytest.mark.parametrize(
    "last, end",
    [
        (seqio.preprocessors.append_eos, 100),
        (seqio.preprocessors.append_eos_after_trim, 1),
    ],
)
def test_trimming_keeps_eos_as_the_preprocessor_says(last, end):
    task = toy_task({"train": [("a" * 9, "a")]}, last=last)
    (batch,) = elements(1, task)
    np.testing.assert_array_equal(
        batch["encoder_input_tokens"][0, 0], [100] * 7 + [end]
    )


def test_refusing_names_the_count_and_the_remedy():
    with pytest.raises(ValueError, match=r"3 of 5 examples .* Raise feature_lengths"):
        elements(1, toy_task({"train": LONG}), handling="refuse", count_limit=9)


@pytest.mark.parametrize("last", ["append_eos", "append_eos_after_trim"])
def test_refusing_catches_an_example_that_was_not_counted(last):
    task = toy_task({"train": LONG}, last=getattr(seqio.preprocessors, last))
    with pytest.raises(ValueError) as error, data_errors():
        elements(2, task, handling="refuse", shuffle=False)
    assert str(error.value) == (
        "over-length example: an example of toy train is longer than inputs 8 / "
        "targets 12: it has inputs 8 / targets 13. Raise feature_lengths, or set "
        "LongExamples.handling to trim or skip."
    )


def test_over_length_must_be_known():
    with pytest.raises(ValueError, match="handling must be one of trim, skip, refuse"):
        elements(1, handling="cut")


def test_tasks_whose_files_are_missing_are_all_named_and_can_be_left_out():
    def missing(split, shuffle_files):
        raise FileNotFoundError(f"there is no {split}.tsv")

    there = toy_task({"train": TRAIN})
    source = seqio.FunctionDataSource(missing, splits=["train"])
    absent = [there.replace(name=name, source=source) for name in ("one", "two")]
    mixture = seqio.Mixture("toys", [(absent[0], 3), (there, 2), (absent[1], 1)])
    with pytest.raises(FileNotFoundError) as error:
        elements(1, mixture)
    assert str(error.value) == (
        "Of the tasks of toys, 2 cannot be read. "
        "one train cannot be read: there is no train.tsv; "
        "two train cannot be read: there is no train.tsv. "
        "Or train without them: Run.without = ['one', 'two']"
    )
    rest = pipeline.get_task(mixture, without=["one", "two"])
    assert rest.name == "toys" and elements(1, rest)
    assert [(t.name, rest.get_rate(t)) for t in rest.tasks] == [("toy", 2)]
    for without in ("one", ["three"], ["one", "toy", "two"]):
        with pytest.raises(ValueError, match="of toys: one, toy, two. Received: with"):
            pipeline.get_task(mixture, without=without)


def test_an_unknown_split_names_those_there_are():
    with pytest.raises(ValueError, match="toy has no split 'dev'. It has: train"):
        elements(1, split="dev")


def test_a_split_without_examples_is_an_error():
    with pytest.raises(ValueError, match="toy train has no examples"):
        elements(1, toy_task({"train": []}))
    with pytest.raises(ValueError, match="toy dev has no examples"):
        eval_dataset(
            toy_task({"dev": []}), feature_lengths=LENGTHS, batch_size=2, split="dev"
        )


def test_eval_batches_hold_every_example_once_in_order():
    batches = list(
        eval_dataset(
            toy_task({"dev": TRAIN[:5]}),
            feature_lengths=LENGTHS,
            batch_size=3,
            split="dev",
        ).as_numpy_iterator()
    )
    assert [x["example_index"].tolist() for x in batches] == [[0, 1, 2], [3, 4, -1]]
    assert sum((texts(x) for x in batches), [])[:5] == [x for x, _ in TRAIN[:5]]
    assert batches[1]["decoder_loss_weights"].any(axis=1).tolist() == [
        True,
        True,
        False,
    ]
    assert {x["encoder_input_tokens"].shape for x in batches} == {(3, 8)}


def test_sorted_eval_batches_are_cut_to_their_bucket():
    task = toy_task({"dev": TRAIN})
    examples = eval_batches.read_examples(task, "dev", LENGTHS)
    codec = Codec(task, LENGTHS)
    batches = list(
        eval_batches.batch_examples(
            examples, codec, batch_size=7, length_buckets=BUCKETS
        ).as_numpy_iterator()
    )
    index = np.concatenate([x["example_index"] for x in batches])
    assert sorted(index[index >= 0]) == list(range(60))
    assert {x["encoder_input_tokens"].shape for x in batches} == {(7, 4), (7, 8)}
    for batch in batches:
        for i, text in zip(batch["example_index"], texts(batch), strict=True):
            assert i < 0 or text == TRAIN[i][0]


def test_language_models_read_prompts_of_equal_length_together():
    """One call reads the prompts of a batch as far as the shortest goes."""
    lengths = [(6, 1), (2, 2), (6, 3), (2, 4), (6, 5), (2, 6)]
    task = toy_task({"dev": rows(lengths)})
    batches = eval_batches.batch_examples(
        eval_batches.read_examples(task, "dev", LENGTHS),
        Codec(task, LENGTHS, LanguageModelFeatureConverter),
        batch_size=3,
        length_buckets=[LENGTHS],
    )
    prompts = [
        [lengths[i][0] for i in batch["example_index"]]
        for batch in batches.as_numpy_iterator()
    ]
    assert prompts == [[2] * 3, [6] * 3]


def test_eval_examples_keep_whole_targets_and_their_other_features():
    (example,) = eval_batches.read_examples(
        toy_task({"dev": LONG[-1:]}), "dev", LENGTHS, max_examples=1
    )
    assert len(example["inputs"]) == 8 and len(example["targets"]) == 21
    assert example["type"] == b"long"


@pytest.fixture
def registered():
    task = toy_task({"train": TRAIN}, name="toy_pipeline")
    seqio.TaskRegistry.add_provider("toy_pipeline", task)
    other = toy_task({"train": rows([(2, 2)] * 3), "dev": TRAIN[:2]}, name="toy_other")
    seqio.TaskRegistry.add_provider("toy_other", other)
    seqio.MixtureRegistry.add("toy_mixture", [("toy_pipeline", 3), ("toy_other", 1)])
    yield
    for name in ("toy_pipeline", "toy_other"):
        seqio.TaskRegistry.remove(name)
    seqio.MixtureRegistry.remove("toy_mixture")


def test_an_unregistered_name_gets_the_nearest(registered):
    with pytest.raises(ValueError, match="'toy_pipelin'.*Nearest: toy_pipeline"):
        pipeline.get_task("toy_pipelin")


@pytest.mark.parametrize("name", ["toy_pipeline", "toy_mixture"])
def test_a_vocabulary_takes_the_place_of_the_registered_one(registered, name):
    vocabulary = seqio.ByteVocabulary(extra_ids=100)
    task = pipeline.get_task(name, vocabulary)
    for subtask in seqio.get_subtasks(task):
        for feature in subtask.output_features.values():
            assert feature.vocabulary == vocabulary
    for feature in pipeline.get_task(name).output_features.values():
        assert feature.vocabulary == VOCABULARY


def test_a_mixture_keeps_its_rates_with_another_vocabulary(registered):
    vocabulary = seqio.ByteVocabulary(extra_ids=100)
    plain = elements(50, pipeline.get_task("toy_mixture"))
    other = elements(50, pipeline.get_task("toy_mixture", vocabulary))
    assert_equal(plain, other)  # extra ids come after the bytes
    of_other = [text in ("ab", "bc", "cd") for x in plain for text in texts(x)]
    assert 0.15 < np.mean(of_other) < 0.35  # a quarter; 1 of 60 is in both


@pytest.mark.slow
def test_a_language_model_reads_inputs_and_targets_and_learns_the_targets():
    """The rows are those of seqio's own converters; no length may be forgotten."""
    task = toy_task({"train": TRAIN})
    options = {"feature_converter": LanguageModelFeatureConverter}
    want = options | {"feature_converter": seqio.PrefixLMFeatureConverter}
    assert_equal(elements(1, task, **options), elements(1, task, **want))
    with pytest.raises(ValueError, match="toy has inputs, and .* no length for them"):
        elements(1, task, **options, feature_lengths={"targets": 12})
    text = task.replace(output_features={"targets": task.output_features["targets"]})
    options["feature_lengths"] = want["feature_lengths"] = {"targets": 12}
    want["feature_converter"] = seqio.LMFeatureConverter
    assert_equal(elements(1, text, **options), elements(1, text, **want))


def test_a_task_in_a_mixture_and_in_its_sub_mixture_keeps_both_rates():
    """The rates are what seqio itself gives the tasks of the mixture."""
    tasks = [toy_task({"train": TRAIN}, name=name) for name in "abc"]
    inner = seqio.Mixture("inner", [(tasks[0], 3), (tasks[1], 1)])
    mixture = seqio.Mixture("outer", [(tasks[0], 1.0), (inner, 2.0), (tasks[2], 0.5)])
    want = {task.name: mixture.get_rate(task) for task in tasks}
    assert want == {"a": 2.5, "b": 0.5, "c": 0.5}
    vocabulary = seqio.ByteVocabulary(extra_ids=100)
    changed = pipeline.get_task(mixture, vocabulary)
    assert {task.name: changed.get_rate(task) for task in changed.tasks} == want
    rest = pipeline.get_task(mixture, vocabulary, without=["b"])
    rest = pipeline.get_task(rest, seqio.ByteVocabulary())  # changed once more
    assert {t.name: rest.get_rate(t) for t in rest.tasks} == {"a": 2.5, "c": 0.5}
    counted = seqio.Mixture("counted", [inner, tasks[0]], default_rate=1)
    rates = {t.name: counted.get_rate(t) for t in counted.tasks}
    copy = pipeline.get_task(counted, vocabulary)
    assert {t.name: copy.get_rate(t) for t in copy.tasks} == rates


def test_rates_that_are_no_shares_are_one_line():
    tasks = [toy_task({"train": TRAIN}, name=name) for name in ("first", "second")]
    message = "rates of mixed must be numbers of at least 0"
    for rates, without in (
        ((1, -1), ()),
        ((math.nan, 1), ()),
        ((1, math.inf), ()),
        (("1", 1), ()),
        ((lambda task: -1, 1), ()),
        ((1, 0), ["first"]),
        ((0, 0), ()),
    ):
        mixture = seqio.Mixture("mixed", [*zip(tasks, rates, strict=True)])
        with pytest.raises(UserError, match=message):
            pipeline._check_rates(pipeline.get_task(mixture, without=without))
    outer = seqio.Mixture("outer", [(mixture, 1)])
    with pytest.raises(UserError, match=message):
        elements(1, outer)
    pipeline._check_rates(seqio.Mixture("mixed", [(tasks[0], 0), (tasks[1], 2.5)]))


def test_a_converter_that_cannot_pack_is_named():
    batching = pipeline.Batching(
        batch_size=2, feature_converter=ClassifierFeatureConverter, pack=True
    )
    lengths = {"inputs": 4, "token_types": 4, "targets": 1}
    message = "ClassifierFeatureConverter cannot pack examples. Set Batching.pack = F"
    with pytest.raises(UserError, match=message):
        pipeline.batch_shapes(batching, lengths)
