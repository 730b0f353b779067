"""Masking against its statistics; batches; epochs, evaluation and resuming."""

import functools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf.data.masked_lm import (
    MaskedLMFeatureConverter,
    concat_and_split,
    mask_tokens,
)
from remixer_tf.data.vocabularies import byte_vocabulary, special_ids
from tests.data.toy_tasks import eval_dataset, train_dataset

VOCABULARY = byte_vocabulary(extra_ids=3)
SPECIAL = special_ids(VOCABULARY)
FEATURES = {name: seqio.Feature(VOCABULARY) for name in ("inputs", "targets")}


def masked(rows, length, seed=0):
    """Masks rows of ids, as NumPy dictionaries."""
    rows = tf.ragged.constant(rows, dtype=tf.int32)
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    dataset = dataset.map(lambda row: {"targets": row})
    with seqio.map_seed_manager(seed):
        dataset = mask_tokens(dataset, {"inputs": length}, FEATURES)
    return list(dataset.as_numpy_iterator())


def test_special_ids():
    assert SPECIAL == (261, 260, 259, 3, 259)
    with pytest.raises(ValueError, match="extra_ids=2"):
        special_ids(byte_vocabulary(extra_ids=2))


def test_masking_statistics():
    rng = np.random.default_rng(0)
    rows = rng.integers(3, 259, (400, 200))
    rows[:, 50], rows[:, 60], rows[:, 70:80] = 1, 2, 260  # none of these counts
    chosen = kinds = 0
    per_position = np.zeros(201)
    random_ids = []
    for row, example in zip(rows, masked(rows.tolist(), 201), strict=True):
        inputs, targets = example["inputs"], example["targets"]
        assert inputs[0] == SPECIAL.cls and targets[0] == -1
        inputs, targets = inputs[1:], targets[1:]
        here = targets > 0
        assert here.sum() == 28  # floor(0.15 * 188)
        np.testing.assert_array_equal(targets[here], row[here])
        np.testing.assert_array_equal(inputs[~here], row[~here])
        is_mask = inputs[here] == SPECIAL.mask
        same = inputs[here] == row[here]
        kinds = kinds + np.array([is_mask.sum(), same.sum()])
        random_ids += inputs[here][~is_mask & ~same].tolist()
        chosen += here.sum()
        per_position[1:] += here
    # Of 11,200 chosen tokens; three standard deviations.
    assert abs(kinds[0] / chosen - 0.8) < 0.0114
    same = 0.1 + 0.1 / 256  # a random token can be the token itself
    assert abs(kinds[1] / chosen - same) < 0.0086
    assert min(random_ids) < 10 and max(random_ids) > 250
    assert not set(random_ids) & {0, 1, 2, *range(259, 262)}
    special = [0, 51, 61, *range(71, 81)]
    assert not per_position[special].any()
    ordinary = np.delete(per_position, special)  # 400 draws of probability 28 / 188
    assert ordinary.min() > 400 * 28 / 188 - 5 * 7.2
    assert ordinary.max() < 400 * 28 / 188 + 5 * 7.2


def test_short_and_long_rows():
    one, none, long = masked([[7], [1, 1], list(range(3, 100))], 20)
    assert one["targets"].tolist() == [-1, 7]
    assert none["targets"].tolist() == [-1, -1, -1]
    assert none["inputs"].tolist() == [SPECIAL.cls, 1, 1]
    assert len(long["inputs"]) == 20 and (long["targets"] > 0).sum() == 2


def test_seeds():
    rows = [list(range(3, 250))] * 2
    a, b, c = masked(rows, 248, 0), masked(rows, 248, 0), masked(rows, 248, 1)
    np.testing.assert_array_equal(a[0]["inputs"], b[0]["inputs"])
    assert (a[0]["inputs"] != a[1]["inputs"]).any()
    assert (a[0]["inputs"] != c[0]["inputs"]).any()


def test_pieces():
    documents = tf.data.Dataset.from_tensor_slices(
        tf.ragged.constant([[5, 1], [6, 7, 8, 1], [9, 1]], dtype=tf.int32)
    ).map(lambda row: {"targets": row, "other": 1})
    pieces = concat_and_split(documents, {"targets": 4}, room=1)
    assert [x["targets"].tolist() for x in pieces.as_numpy_iterator()] == [
        [5, 1, 6],
        [7, 8, 1],
        [9, 1],
    ]


def convert(rows, lengths, pack=False):
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(rows),
        output_signature={
            name: tf.TensorSpec([None], tf.int32) for name in ("inputs", "targets")
        },
    )
    converted = MaskedLMFeatureConverter(pack=pack)(dataset, lengths)
    return [
        {name: x.tolist() for name, x in row.items()}
        for row in converted.as_numpy_iterator()
    ]


def test_converter():
    row = {
        "inputs": [98, 7, 8, 99, 10, 11, 12, 99, 14, 15, 16],
        "targets": [-1, -1, -1, 9, -1, -1, -1, 13, -1, -1, -1],
    }
    assert convert([row], {"inputs": 20, "targets": 20}) == [
        {
            "encoder_input_tokens": row["inputs"] + [0] * 9,
            "masked_positions": [3, 7, 0],
            "encoder_target_tokens": [9, 13, 0],
            "encoder_loss_weights": [1, 1, 0],
        }
    ]
    lengths = MaskedLMFeatureConverter().get_model_feature_lengths(
        {"inputs": 512, "targets": 512}
    )
    assert lengths["masked_positions"] == 76
    with pytest.raises(ValueError, match="one length"):
        convert([row], {"inputs": 20, "targets": 10})


@pytest.mark.slow
def test_converter_packs():
    rows = [
        {"inputs": [98, 99, 8], "targets": [-1, 7, -1]},
        {"inputs": [98, 99, 6, 5], "targets": [-1, 4, -1, -1]},
    ]
    assert convert(rows, {"inputs": 14, "targets": 14}, pack=True) == [
        {
            "encoder_input_tokens": [98, 99, 8, 98, 99, 6, 5] + [0] * 7,
            "encoder_segment_ids": [1, 1, 1, 2, 2, 2, 2] + [0] * 7,
            "encoder_positions": [0, 1, 2, 0, 1, 2, 3] + [0] * 7,
            "masked_positions": [1, 4],
            "encoder_target_tokens": [7, 4],
            "encoder_loss_weights": [1, 1],
        }
    ]


def text_task(texts, features=("inputs", "targets"), split=True, **kwargs):
    def dataset_fn(split, shuffle_files):
        return tf.data.Dataset.from_tensor_slices({"targets": texts})

    preprocessors = [seqio.preprocessors.tokenize, seqio.preprocessors.append_eos]
    if "inputs" in features:
        pieces = [functools.partial(concat_and_split, room=1)] if split else []
        preprocessors += [*pieces, mask_tokens]
    else:
        preprocessors.append(concat_and_split)
    return seqio.Task(
        "toy_text",
        source=seqio.FunctionDataSource(dataset_fn, splits=["train", "validation"]),
        preprocessors=preprocessors,
        output_features={name: FEATURES[name] for name in features},
        **kwargs,
    )


TEXTS = [f"{i} " + "abcdefgh"[i % 8 :] * 4 for i in range(12)]
LENGTHS = {"inputs": 32, "targets": 32}


def training(split=True, **kwargs):
    return train_dataset(
        text_task(TEXTS, split=split, shuffle_buffer_size=5),
        feature_lengths=LENGTHS,
        batch_size=2,
        feature_converter=MaskedLMFeatureConverter,
        count_limit=0,
        **kwargs,
    )


@pytest.mark.slow
def test_every_epoch_masks_anew_and_two_runs_mask_alike():
    def restored(row):
        tokens = row["encoder_input_tokens"].copy()
        count = row["encoder_loss_weights"].sum()
        tokens[row["masked_positions"][:count]] = row["encoder_target_tokens"][:count]
        return tokens.tobytes()

    def rows(batches):
        data = training(split=False, shuffle=False).take(batches).as_numpy_iterator()
        return [
            {name: x[0][i] for name, x in batch.items()}
            for batch in data
            for i in range(2)
        ]

    seen = {}
    for row in rows(10 * len(TEXTS) // 2):
        seen.setdefault(restored(row), []).append(row["encoder_input_tokens"])
    assert len(seen) == len(TEXTS)
    for epochs in seen.values():
        assert len(epochs) == 10 and len({x.tobytes() for x in epochs}) > 2
    for a, b in zip(rows(6), rows(6), strict=True):
        np.testing.assert_array_equal(
            a["encoder_input_tokens"], b["encoder_input_tokens"]
        )


@pytest.mark.slow
def test_a_resumed_run_masks_what_was_still_to_come(tmp_path):
    iterator = iter(training(seed=3))
    for _ in range(5):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "state"))
    expected = [next(iterator) for _ in range(20)]
    other = iter(training(seed=3))
    tf.train.Checkpoint(iterator=other).restore(path).assert_consumed()
    for batch in expected:
        resumed = next(other)
        for name, x in batch.items():
            np.testing.assert_array_equal(resumed[name], x)


def test_evaluation_always_masks_alike():
    def batches():
        dataset = eval_dataset(
            text_task(TEXTS),
            feature_lengths=LENGTHS,
            batch_size=4,
            feature_converter=MaskedLMFeatureConverter,
        )
        return list(dataset.as_numpy_iterator())

    for a, b in zip(batches(), batches(), strict=True):
        for name, x in a.items():
            np.testing.assert_array_equal(x, b[name])
    filling = a["example_index"] < 0
    assert filling.any() and not a["encoder_loss_weights"][filling].any()


def test_language_models_read_seqios_converters():
    task = text_task(TEXTS, features=("targets",))
    for pack in (False, True):
        dataset = train_dataset(
            task,
            feature_lengths={"targets": 16},
            batch_size=2,
            pack=pack,
            feature_converter=seqio.LMFeatureConverter,
            count_limit=0,
        )
        batch = next(iter(dataset))
        names = {"input_tokens", "target_tokens", "loss_weights"}
        names |= {"segment_ids", "positions"} if pack else set()
        assert set(batch) == {f"decoder_{name}" for name in names}
        shifted = batch["decoder_target_tokens"][..., :-1].numpy()
        inputs = batch["decoder_input_tokens"].numpy()
        assert (inputs[..., 0] == 0).all()
        if not pack:
            np.testing.assert_array_equal(inputs[..., 1:], shifted)
