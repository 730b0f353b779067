"""Questions about a text whose answer is a span of it: BERT's windows."""

import seqio
import tensorflow as tf

from remixer_tf.data.classification import INT32, ClassifierFeatureConverter
from remixer_tf.data.failures import fail_unless
from remixer_tf.data.vocabularies import special_ids
from remixer_tf.errors import UserError


def span_windows(
    dataset, sequence_length, output_features, *, max_question_length=64, stride=128
):
    """A preprocessor: BERT's overlapping windows of a context that holds an answer.

    Raises a ValueError if the vocabulary has no ids for [CLS] and [SEP] or gives no
    offsets of its tokens, or the length leaves no room for the context.

        [CLS] question [SEP] piece of the context [SEP]    token types 0 ... 0 1 ... 1

    A piece starts every `stride` tokens, or where the last one ended if that is nearer.
    Targets are the positions of the first answer's first and last token, or 0 and 0,
    that of [CLS], if the window lacks a part of the answer. In bytes, with a length of
    9 and a stride of 2, the answer "cd" to "q?" in "ab cd" gives

        [CLS] q ? [SEP] a b _ c [SEP]    targets [0, 0]
        [CLS] q ? [SEP] _ c d [SEP]      targets [5, 6]

    Args:
        dataset: examples as in TFDS' SQuAD: strings "id", "question", "context", and
            "answers", a dictionary of strings `[k]` "text" and int32 `[k]`
            "answer_start", in characters. Without an answer k is 0.
        sequence_length: dictionary of ints with the length of "inputs".
        output_features: dictionary of `seqio.Feature`.
        max_question_length: int, tokens; longer questions lose their end.
        stride: int, tokens.

    Returns:
        a `tf.data.Dataset` of windows: "inputs" and "token_types", int32 `[n]`;
        "targets", int32 `[2]`; "answerable", int32 `[n]`, 0 outside of the context, 2
        where an answer may start since this is the token's window of maximum context
        (the most tokens on its poorer side), else 1; "offsets", int32 `[n, 2]`, bytes
        of "context", -1 outside of it; "id", "answers" `[k]` and the texts.
    """
    vocabulary = output_features["inputs"].vocabulary
    special = special_ids(vocabulary)
    _check_offsets(vocabulary)
    length = sequence_length["inputs"]
    if length < max_question_length + 4:
        raise UserError(
            f"A window of {length} tokens has no room for a context beside a question "
            f"of up to {max_question_length}, [CLS] and twice [SEP]. Set the length of "
            f"'inputs' to more than {max_question_length + 3}."
        )

    @seqio.map_over_dataset
    def tokenize(example):
        question, _ = _tokenize(vocabulary, example["question"])
        question = question[:max_question_length]
        head = tf.concat([[special.cls], question, [special.sep]], axis=0)
        return {"head": head, **_with_answer(vocabulary, example)}

    return tokenize(dataset).flat_map(
        lambda example: _cut(example, special.sep, length, stride)
    )


def _with_answer(vocabulary, example):
    """Tokenizes the context, and finds the tokens of the first answer in it."""
    context, answers = example["context"], example["answers"]
    tokens, offsets = _tokenize(vocabulary, context)
    start, end, text = _first_answer(context, answers, example["id"])
    return {
        "tokens": tokens,
        "offsets": offsets,
        # SentencePiece gives a word the space before it, so a token counts from
        # where it ends and up to where it starts.
        "first": tf.math.count_nonzero(offsets[:, 1] <= start, dtype=tf.int32),
        "last": tf.math.count_nonzero(offsets[:, 0] < end, dtype=tf.int32) - 1,
        "answer": text,
        "kept": {
            "context": context,
            "id": example["id"],
            "answers": answers["text"],
            "inputs_pretokenized": example["question"],
        },
    }


def _cut(example, sep, length, stride):
    """Cuts the result of `_with_answer` into windows, each after the head."""
    head = example["head"]
    before = tf.size(head)
    room = length - before - 1
    step = tf.minimum(stride, room)
    number = tf.size(example["tokens"])
    count = 1 + (tf.maximum(number - room, 0) + step - 1) // step
    best = _windows_of_most_context(number, step * tf.range(count), room)

    def window(index):
        index = tf.cast(index, tf.int32)
        start = index * step
        piece = example["tokens"][start : start + room]
        offsets = example["offsets"][start : start + room]
        first, last = example["first"], example["last"]
        answerable = 1 + tf.cast(best[start : start + room] == index, tf.int32)
        whole = (start <= first) & (first <= last) & (last < start + room)
        place = before - start
        return {
            "inputs": tf.concat([head, piece, [sep]], 0),
            "token_types": tf.concat(
                [tf.zeros_like(head), tf.ones_like(piece), [1]], 0
            ),
            "answerable": tf.pad(answerable, [[before, 1]]),
            "targets": tf.where(whole, [first + place, last + place], 0),
            "offsets": tf.pad(offsets, [[before, 1], [0, 0]], constant_values=-1),
            "targets_pretokenized": tf.where(whole, example["answer"], ""),
            **example["kept"],
        }

    return tf.data.Dataset.range(tf.cast(count, tf.int64)).map(window)


def cut_span(example, span):
    """Cuts the text between two positions, `span`, of a window of `span_windows`.

    It is stripped, and "" unless both tokens are the context's.
    """
    first, last = example["offsets"][span[0]], example["offsets"][span[1]]
    if min(*first, *last) < 0:
        return ""
    return example["context"][first[0] : last[1]].decode("utf-8", "ignore").strip()


class SpanFeatureConverter(ClassifierFeatureConverter):
    """`ClassifierFeatureConverter` with "answerable", for `best_span`.

    `span_windows` becomes batches for an `EncoderOnly` with a `SpanHead`; the two
    targets, the positions of the first and the last token, are "labels".
    """

    SOURCES = ClassifierFeatureConverter.SOURCES | {"answerable": "answerable"}
    TASK_FEATURES = dict.fromkeys(SOURCES.values(), INT32)
    MODEL_FEATURES = dict.fromkeys(SOURCES, INT32)


def _windows_of_most_context(number, starts, room):
    """BERT's maximum context: for each token the window with most tokens around it."""
    # A window's score is the number of tokens to the left or to the right, whichever is
    # less, and a hundredth of its length; the first of equal ones is taken. The last
    # window may be shorter than `room`.
    starts = starts[:, None]
    lengths = tf.minimum(room, number - starts)
    left = tf.range(number) - starts
    right = lengths - 1 - left
    inside = (left >= 0) & (right >= 0)
    context = tf.where(inside, 100 * tf.minimum(left, right) + lengths, -1)
    return tf.argmax(context, axis=0, output_type=tf.int32)


def _tokenize(vocabulary, text):
    """Returns tokens int32 [n] and int32 [n, 2], where they start and end, in bytes."""
    if isinstance(vocabulary, seqio.ByteVocabulary):
        tokens = vocabulary.encode_tf(text)
        starts = tf.range(tf.size(tokens))
        return tokens, tf.stack([starts, starts + 1], axis=1)
    tokens, starts, ends = vocabulary.tf_tokenizer.tokenize_with_offsets(text)
    return tokens, tf.cast(tf.stack([starts, ends], axis=1), tf.int32)


def _check_offsets(vocabulary):
    tokenizer = getattr(vocabulary, "tf_tokenizer", None)
    if not isinstance(vocabulary, seqio.ByteVocabulary) and not hasattr(
        tokenizer, "tokenize_with_offsets"
    ):
        raise UserError(
            "Answers are cut out of their text, so the vocabulary must tell where its "
            "tokens stand: byte_vocabulary and sentencepiece_vocabulary do. Received: "
            f"{vocabulary}."
        )


def _first_answer(context, answers, name):
    """Bytes where the first answer starts and ends, and its text; 0, 0, "" for none."""
    text = tf.concat([answers["text"], [""]], 0)[0]
    characters = tf.concat([answers["answer_start"], [0]], 0)[0]
    before = tf.strings.substr(context, 0, characters, unit="UTF8_CHAR")
    start = tf.strings.length(before)
    after = tf.strings.substr(context, start, tf.strings.length(context))
    size = tf.strings.length(text, unit="UTF8_CHAR")
    found = tf.strings.substr(after, 0, size, unit="UTF8_CHAR")
    message = tf.strings.join(
        [
            *("The context of question ", name, " has at answer_start: ", found),
            *(". Expected its answer: ", text, ". It counts characters, from 0."),
        ]
    )
    with tf.control_dependencies([fail_unless(found == text, message)]):
        bare = tf.strings.strip(text)
    without_left = tf.strings.regex_replace(text, r"^\s+", "")
    start += tf.strings.length(text) - tf.strings.length(without_left)
    return start, start + tf.strings.length(bare), bare
