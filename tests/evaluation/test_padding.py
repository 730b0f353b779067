"""Evaluation pads as inference does, where that changes an answer."""

import functools

import numpy as np
import pytest

from remixer_tf.data.classification import ClassifierFeatureConverter
from remixer_tf.data.codec import Codec
from remixer_tf.data.eval_batches import padded_lengths
from remixer_tf.decoding import Decoded, classify
from remixer_tf.evaluation.calls import call_on_examples
from remixer_tf.evaluation.decoded import DecodedEvaluation
from remixer_tf.models import ClassificationHead, EncoderOnly
from tests.data.toy_tasks import VOCABULARY, toy_task
from tests.evaluation.shift import engine_of
from tests.layers.harness import randomize
from tests.models.tiny import VOCAB_SIZE, tiny_encoder, tiny_model, tiny_stack

LENGTHS = {"inputs": 12, "targets": 4}


def examples(lengths=range(1, 13), **features):
    rng = np.random.default_rng(0)
    for length in lengths:
        inputs = rng.integers(2, VOCAB_SIZE, length).astype("int32")
        yield {"inputs": inputs, **{name: f(inputs) for name, f in features.items()}}


@pytest.mark.parametrize(
    "dtype, lengths", [("float32", {16, 24, 36, 48}), ("mixed_bfloat16", {48})]
)
def test_what_writes_in_bfloat16_reads_what_inference_reads(dtype, lengths):
    seen, longer = set(), {"inputs": 48, "targets": 4}

    def record(batch):
        inputs = batch["encoder_input_tokens"]
        seen.add(inputs.shape[1])
        return Decoded(inputs[:, :1].numpy(), inputs[:, 0].numpy())

    call_on_examples(
        record,
        list(examples(range(4, 49, 4), targets=lambda inputs: inputs[:4])),
        Codec(toy_task({}), longer),
        length_buckets=padded_lengths(tiny_model("remixer", dtype=dtype), longer),
        batch_size=3,
        description="decoding",
    )
    assert seen == lengths


@pytest.mark.parametrize(
    "mask_padding", [pytest.param(True, marks=pytest.mark.slow), False]
)
def test_a_class_is_that_at_full_length(mask_padding):
    head = functools.partial(ClassificationHead, 4)
    model = tiny_encoder("gmlp", head, mask_padding=mask_padding)
    randomize(model)
    rows = list(examples(token_types=np.zeros_like, targets=lambda inputs: inputs[:1]))
    lengths = {"inputs": 12, "token_types": 12, "targets": 1}
    decoded = call_on_examples(
        engine_of(model).compile(lambda batch: classify(model, batch, 1)),
        rows,
        Codec(toy_task({}), lengths, ClassifierFeatureConverter),
        length_buckets=padded_lengths(model, lengths),
        batch_size=3,
        description="decoding",
    )
    inputs = np.stack([np.pad(row["inputs"], (0, 12))[:12] for row in rows])
    expected = classify(model, {"encoder_input_tokens": inputs}, 1)
    np.testing.assert_allclose(decoded.scores, expected.scores, atol=1e-4)


@pytest.mark.slow
def test_a_model_that_sees_padding_is_evaluated_at_full_length(tmp_path):
    head = functools.partial(ClassificationHead, 4)
    vocab_size, d_model = VOCABULARY.vocab_size, 8
    model = EncoderOnly(
        tiny_stack("gmlp"), head, vocab_size, d_model, mask_padding=False
    )
    model.build()
    randomize(model)
    found = []

    def keep(targets, predictions, aux_values):
        found.extend(aux_values["scores"])
        return {"kept": len(found)}

    texts = ["a", "bc", "abcd"]
    evaluation = DecodedEvaluation(
        toy_task({"dev": [(text, "x") for text in texts]}, metric_fns=[keep]),
        feature_lengths=LENGTHS,
        batch_size=1,
        max_length=1,
        decode_fn=classify,
    )
    evaluation.run(str(tmp_path), engine_of(model), 1)
    rows = [[*VOCABULARY.encode(text), 1] for text in texts]
    inputs = np.array([row + [0] * (12 - len(row)) for row in rows])
    expected = classify(model, {"encoder_input_tokens": inputs}, 1)
    np.testing.assert_allclose(found, expected.scores, atol=1e-5)
