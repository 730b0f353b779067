"""Windows of a context, and where in them the answer stands."""

import numpy as np
import pytest
import seqio

from remixer_tf.data.failures import data_errors
from remixer_tf.data.spans import cut_span, span_windows
from remixer_tf.data.vocabularies import byte_vocabulary, sentencepiece_vocabulary
from remixer_tf.tasks.squad import question_source, read_json
from tests.tasks import squad_reference as reference

CLS, SEP = 260, 259
BYTES = byte_vocabulary(extra_ids=3)


def windows(rows, length, vocabulary=BYTES, **kwargs):
    """The windows of rows, or of one (question, context, answer, answer_start)."""
    if isinstance(rows, tuple):
        question, context, *answers = rows
        pairs = zip(answers[::2], answers[1::2], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
        rows = [
            {"id": "q", "question": question, "context": context, "answers": answers}
        ]
    source = question_source(lambda split: rows, ["dev"])
    features = {"inputs": seqio.Feature(vocabulary, add_eos=False)}
    dataset = source.get_dataset("dev", shuffle=False)
    with data_errors():
        return list(
            span_windows(
                dataset, {"inputs": length}, features, **kwargs
            ).as_numpy_iterator()
        )


def bytes_of(text):
    return [b + 3 for b in text.encode()]


def expected(question, piece):
    """Inputs and token types of a window."""
    first = [CLS, *bytes_of(question), SEP]
    second = [*bytes_of(piece), SEP]
    return first + second, [0] * len(first) + [1] * len(second)


def check(found, *pieces, question, targets):
    assert len(found) == len(pieces) == len(targets)
    for window, piece, target in zip(found, pieces, targets, strict=True):
        inputs, types = expected(question, piece)
        assert window["inputs"].tolist() == inputs
        assert window["token_types"].tolist() == types
        assert window["targets"].tolist() == target


def test_one_window():
    (window,) = found = windows(("who?", "it was Ann", "Ann", 7, "it", 0), 100)
    check(found, "it was Ann", question="who?", targets=[[13, 15]])
    assert window["offsets"][:6].tolist() == [[-1, -1]] * 6
    assert window["offsets"][6:-1].tolist() == [[i, i + 1] for i in range(10)]
    assert window["offsets"][-1].tolist() == [-1, -1]
    assert window["answers"].tolist() == [b"Ann", b"it"]
    assert window["id"] == b"q" and window["context"] == b"it was Ann"
    assert window["targets_pretokenized"] == b"Ann"
    assert {name: window[name].dtype for name in ("inputs", "token_types")} == {
        "inputs": np.int32,
        "token_types": np.int32,
    }


def test_windows_overlap_and_a_cut_answer_is_none():
    """The answer "de" is whole in one window of three."""
    small = {"max_question_length": 2, "stride": 2}
    found = windows(("q?", "abcdefgh", "de", 3), 9, **small)
    targets = [[0, 0], [5, 6], [0, 0]]
    check(found, "abcd", "cdef", "efgh", question="q?", targets=targets)
    texts = [window["targets_pretokenized"] for window in found]
    assert texts == [b"", b"de", b""]
    # At the borders of a window it is whole.
    found = windows(("q?", "abcdefgh", "cdef", 2), 9, **small)
    targets = [[0, 0], [4, 7], [0, 0]]
    check(found, "abcd", "cdef", "efgh", question="q?", targets=targets)
    # One token more needs one window more; a short last one.
    found = windows(("q?", "abcde", "e", 4), 9, **small)
    check(found, "abcd", "cde", question="q?", targets=[[0, 0], [6, 6]])


@pytest.mark.parametrize("stride", [1, 2, 4, 9])
def test_answers_start_in_the_window_of_maximum_context(stride):
    lengths = [0, 1, 6, 7, 14, 25]
    letters = "abcdefghijklmnopqrstuvwxyz"
    rows = [
        {"id": str(n), "question": "q?", "context": letters[:n], "answers": []}
        for n in lengths
    ]
    found = iter(windows(rows, 11, max_question_length=2, stride=stride))
    for length in lengths:
        spans = reference.doc_spans(length, 6, stride)
        for i, (start, size) in enumerate(spans):
            best = [
                reference.has_maximum_context(spans, i, start + place)
                for place in range(size)
            ]
            expected = [0] * 4 + [1 + x for x in best] + [0]
            assert next(found)["answerable"].tolist() == expected
    assert not list(found)


def test_a_stride_over_the_room_leaves_no_gap():
    found = windows(("q?", "abcdefg", "e", 4), 8, max_question_length=2)
    targets = [[0, 0], [5, 5], [0, 0]]
    check(found, "abc", "def", "g", question="q?", targets=targets)


def test_a_long_question_loses_its_end():
    found = windows(("which?", "abcd", "b", 1), 9, max_question_length=3, stride=1)
    targets = [[6, 6], [5, 5]]
    check(found, "abc", "bcd", question="whi", targets=targets)
    with pytest.raises(ValueError, match="'inputs' to more than 6"):
        windows(("which?", "abcd", "b", 1), 6, max_question_length=3)


def test_answers_are_told_in_characters_and_found_in_bytes():
    context = "Zoë aß Müsli 🙂 à Köln"
    row = ("wo?", context, "Köln", context.index("Köln"))
    (window,) = windows(row, 100)
    before = len(context[: context.index("Köln")].encode()) + 5
    assert window["targets"].tolist() == [before, before + 4]
    assert cut_span(window, window["targets"]) == "Köln"
    assert cut_span(window, [before, before + 1]) == "K"  # half an ö


def test_outer_spaces_are_no_part_of_an_answer():
    (window,) = windows(("q?", "ab  cd ef", "  cd ", 2), 100)
    assert cut_span(window, window["targets"]) == "cd"
    assert window["targets"].tolist() == [8, 9]


def test_no_answer():
    (window,) = windows(("q?", "ab"), 100)
    assert window["targets"].tolist() == [0, 0] and window["answers"].tolist() == []


def test_spans_outside_of_the_context_are_no_text():
    (window,) = windows(("q?", "ab", "b", 1), 100)
    assert window["inputs"].tolist()[4:6] == bytes_of("ab")
    assert cut_span(window, [4, 5]) == "ab" and cut_span(window, [4, 4]) == "a"
    for span in ([0, 0], [0, 4], [1, 2], [2, 5], [3, 4], [4, 6], [6, 6]):
        assert cut_span(window, span) == ""


@pytest.mark.parametrize("start, found", [(0, "aß"), (2, "c"), (99, "")])
def test_a_misplaced_answer_is_an_error(start, found):
    message = f"question q has at answer_start: {found}. Expected its answer: ßc."
    with pytest.raises(ValueError, match=message):
        windows(("q?", "aßc", "ßc", start), 100)


def test_a_vocabulary_without_offsets_is_an_error():
    vocabulary = seqio.UnigramVocabulary(["a", "b"])
    vocabulary._extra_ids = 3
    with pytest.raises(ValueError, match="where its tokens stand.*Unigram"):
        windows(("a", "a b", "b", 2), 100, vocabulary)


def test_sentencepiece(tmp_path):
    """A word's piece holds the space before it; the answer does not."""
    from remixer_tf.data.vocabulary_training import train_vocabulary

    texts = ["Die Müsli sind in Köln", "wo sind sie"] * 5
    train_vocabulary(texts, f"{tmp_path}/words.model", model_type="word")
    vocabulary = sentencepiece_vocabulary(f"{tmp_path}/words.model", extra_ids=3)
    context = "Die  Müsli sind\nin Köln"
    (window,) = windows(("wo sind sie", context, "sind\nin", 11), 100, vocabulary)
    assert window["targets"].tolist() == [7, 8]  # [CLS], 3 words, [SEP], Die, Müsli
    assert cut_span(window, window["targets"]) == "sind\nin"
    assert window["offsets"][5:-1].tolist() == [[0, 3], [3, 11], [11, 16], [16, 19]] + [
        [19, 25]
    ]


@pytest.mark.real_data
@pytest.mark.slow
def test_answers_of_xquad_in_t5_pieces(real_data_dir):
    vocabulary = sentencepiece_vocabulary(
        real_data_dir / "sentencepiece" / "t5_spiece.model", extra_ids=3
    )
    rows = read_json(str(real_data_dir / "squad" / "xquad.en.json"))
    found = windows(rows, 384, vocabulary)
    whole = [window for window in found if window["targets"].any()]
    assert len(rows) == 1190
    assert {window["id"].decode() for window in whole} == {row["id"] for row in rows}
    exact = 0
    for window in whole:
        text, answer = (
            cut_span(window, window["targets"]),
            window["answers"][0].decode(),
        )
        assert answer in text
        exact += text == answer
    # Some answers start or end inside of a piece, such as "▁(2" and "7.".
    assert exact > 0.97 * len(whole)
