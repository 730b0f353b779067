"""One text gives the same ids wherever it is read: training has the word."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf.data.codec import UNSETTLED, Codec, keep_end
from remixer_tf.data.language_model import LanguageModelFeatureConverter
from remixer_tf.data.vocabulary_training import train_vocabulary
from tests.data.toy_tasks import VOCABULARY, eval_dataset, toy_task, train_dataset

LENGTHS = {"inputs": 6, "targets": 4}
# Short, as long as the model reads with EOS and without, and too long: each with each.
TEXTS = [("abcdefghi"[:n], "jklmnop"[:m]) for n in (1, 5, 6, 9) for m in (1, 3, 4, 7)]
APPEND = seqio.preprocessors.append_eos
AFTER_TRIM = seqio.preprocessors.append_eos_after_trim
# What a task may do, and what is left of the longest inputs and targets; 1 is EOS.
RULES = {
    "append_eos": ([APPEND], "abcdef", "jklm"),
    "append_eos_after_trim": ([AFTER_TRIM], "abcde</s>", "jkl</s>"),
    "keep_end": ([keep_end, AFTER_TRIM], "efghi</s>", "jkl</s>"),
}
# What transformers 5.24's ByT5Tokenizer decodes with clean_up_tokenization_spaces.
CLEANED = {
    "the dog .": "the dog.",
    "a , b": "a, b",
    "it 's": "it's",
    "do n't": "don't",
    "I 'm": "I'm",
    "we 've": "we've",
    "they 're": "they're",
    "' x '": "' x '",
    "a ' b ' c": "a'b'c",
    "he said ' no ' .": "he said'no '.",
    "a  .": "a .",
    "a ' .": "a '.",
    "( x ) ?": "( x )?",
    "wow !": "wow!",
    " ' ' ' ": "'''",
}
FORMS = {"two rows": seqio.EncDecFeatureConverter, "one": LanguageModelFeatureConverter}


def task_of(rule):
    task = toy_task({"train": TEXTS, "dev": TEXTS})
    (tokenize, _), last = task.preprocessors, RULES[rule][0]
    return task.replace(preprocessors=[tokenize, *last])


def text_of(row):
    ids = [int(i) for i in row if i]
    return "".join("</s>" if i == 1 else VOCABULARY.decode([i]) for i in ids)


def assert_same(batch, expected):
    for name, rows in expected.items():
        if name != "decoder_causal_attention":  # no model reads it
            np.testing.assert_array_equal(batch[name], rows, name)


def test_blanks_are_left_out_as_in_transformers():
    codec, known = Codec(toy_task({}), LENGTHS), [*CLEANED]

    def clean(texts):
        ids = tf.ragged.constant([VOCABULARY.encode(text) for text in texts])
        found = codec.decode(ids.to_tensor(), clean_up_tokenization_spaces=True)
        return [text.decode() for text in found.numpy()]

    whole = clean(known)
    assert whole == [*CLEANED.values()]
    # A stream hands on all but the last characters of what has come.
    starts = [
        (text[:n], end)
        for text, end in zip(known, whole, strict=True)
        for n in range(1, len(text))
    ]
    for begun, (_, end) in zip(clean([x for x, _ in starts]), starts, strict=True):
        assert end.startswith(begun[:-UNSETTLED])


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule, form",
    [
        ("append_eos_after_trim", "two rows"),
        ("keep_end", "one"),
        pytest.param("append_eos", "two rows", marks=pytest.mark.slow),
        pytest.param("append_eos_after_trim", "one", marks=pytest.mark.slow),
    ],
)
def test_all_read_what_training_reads(rule, form):
    task, (_, inputs, targets) = task_of(rule), RULES[rule]
    options = {
        "feature_lengths": LENGTHS,
        "feature_converter": FORMS[form],
        "batch_size": len(TEXTS),
    }
    (superbatch,) = train_dataset(task, shuffle=False, **options).take(1)
    trained = {name: x[0].numpy() for name, x in superbatch.items()}
    row = trained["decoder_target_tokens"][-1]
    if form == "one":
        assert text_of(row) == inputs + targets
    else:
        assert text_of(row) == targets
        assert text_of(trained["encoder_input_tokens"][-1]) == inputs

    (evaluated,) = eval_dataset(task, split="dev", **options).as_numpy_iterator()
    assert_same(evaluated, trained)

    codec = Codec(task, LENGTHS, FORMS[form])
    inputs, targets = (tf.constant(column) for column in zip(*TEXTS, strict=True))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)] * 2)
    def score(inputs, targets):  # as an export does
        return codec.pairs(
            codec.encode("inputs", inputs), codec.encode("targets", targets)
        )

    batch, _, trimmed = score(inputs, targets)
    assert_same(batch, trained)
    too_long = [len(a) > 5 or len(b) > 3 for a, b in TEXTS]
    assert trimmed.numpy().tolist() == too_long
    lists = [(codec.ids("inputs", a), codec.ids("targets", b)) for a, b in TEXTS]
    for name, ids, column in (("inputs", 0, inputs), ("targets", 1, targets)):
        whole = codec.encode(name, column).to_list()
        assert whole == [pair[ids] for pair in lists]

    prompts, trimmed = codec.read("inputs", inputs)
    assert trimmed.numpy().tolist() == [len(text) > 5 for text, _ in TEXTS]
    for prompt, row in zip(prompts, batch["decoder_target_tokens"], strict=True):
        if form == "one":
            assert text_of(row).startswith(text_of(prompt))
    if form == "two rows":
        np.testing.assert_array_equal(prompts, trained["encoder_input_tokens"])


@pytest.mark.slow
@pytest.mark.parametrize("last, longest", [(APPEND, "jklm"), (AFTER_TRIM, "jkl</s>")])
def test_running_text_is_evaluated_as_it_is_trained(last, longest):
    task = toy_task({"train": TEXTS, "dev": TEXTS}, last=last)
    targets = {"targets": task.output_features["targets"]}
    task = task.replace(output_features=targets)
    options = {
        "feature_lengths": {"targets": 4},
        "feature_converter": FORMS["one"],
        "batch_size": len(TEXTS),
    }
    (superbatch,) = train_dataset(task, shuffle=False, **options).take(1)
    trained = {name: x[0].numpy() for name, x in superbatch.items()}
    assert text_of(trained["decoder_target_tokens"][-1]) == longest
    (evaluated,) = eval_dataset(task, split="dev", **options).as_numpy_iterator()
    assert_same(evaluated, trained)


def test_the_harness_takes_the_beginning_from_contexts():
    """The inputs of a language model have all the room that the targets leave."""
    for form, kept in (("two rows", "ghi"), ("one", "bcdefghi")):
        codec = Codec(task_of("append_eos"), LENGTHS, FORMS[form], trim="start")
        ids = tf.ragged.constant([codec.ids("inputs", "abcdefghi", eos=False)])
        target = tf.ragged.constant([codec.ids("targets", "j", eos=False)])
        batch, _, trimmed = codec.pairs(ids, tf.concat([target, target], axis=1))
        first = next(iter(batch.values()))[0]
        if form == "two rows":
            assert text_of(first) == "def" + kept
        else:
            assert text_of(batch["decoder_target_tokens"][0]) == kept + "jj"
        assert trimmed.numpy().tolist() == [True]
    with pytest.raises(ValueError, match="one of None, start. Received: trim='end'"):
        Codec(task_of("append_eos"), LENGTHS, trim="end")


def test_a_tokenizer_is_made_once_and_shared():
    class Counting(seqio.SentencePieceVocabulary):
        made = 0

        @property
        def tf_tokenizer(self):
            Counting.made += 1
            return super().tf_tokenizer

    path = f"{seqio.__path__[0]}/test_data/sentencepiece/sentencepiece.model"
    feature = seqio.Feature(Counting(path))
    task = toy_task({}).replace(output_features={"inputs": feature, "targets": feature})
    codec = Codec(task, LENGTHS)
    for text in ("one", "two", b"\xff three"):
        assert codec.ids("inputs", text)[-1] == 1
    assert codec.decode(codec.read("targets", tf.constant(["one"]))[0]).shape == [1]
    assert Counting.made == 1


def test_texts_are_read_after_a_seed_is_set(tmp_path):
    """TensorFlow then drops what its operations hold, tokenizers' models too."""
    words = train_vocabulary(["a b c"], str(tmp_path / "m"), model_type="word")
    feature = seqio.Feature(words)
    task = task_of("append_eos").replace(
        output_features={"inputs": feature, "targets": feature}
    )
    codec = Codec(task, LENGTHS)
    before = codec.ids("inputs", "a b")
    tf.random.set_seed(1)
    assert codec.ids("inputs", "a b") == before
    assert (
        codec.read("inputs", tf.constant(["a b"]))[0].numpy()[0, :3].tolist() == before
    )


def test_extra_ids_are_left_out_where_asked(tmp_path):
    """As transformers' tokenizers do: 'a<extra_id_0> b' and 'a b'."""
    path = str(tmp_path / "m")
    train_vocabulary(["a b c"], path, model_type="word")
    words = seqio.SentencePieceVocabulary(path, extra_ids=2)
    feature = seqio.Feature(words)
    task = task_of("append_eos").replace(
        output_features={"inputs": feature, "targets": feature}
    )
    codec = Codec(task, LENGTHS)
    (a,), (b,) = words.encode("a"), words.encode("b")
    ids = tf.constant([[a, words.vocab_size - 1, b, 1, 0, words.vocab_size - 2]])
    assert b"extra_id_0" in codec.decode(ids).numpy()[0]
    assert codec.decode(ids, skip_special_tokens=True).numpy()[0] == b"a b"
