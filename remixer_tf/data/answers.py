"""Strings that answers may be, as searches take them."""

from remixer_tf.data.pipeline import get_task


def allowed_answers(strings, task, vocabulary=None):
    """Encodes the strings that a search may answer with: its argument `allowed`.

    Args:
        strings: list of str, such as the labels of a classification task.
        task, vocabulary: see `get_task`; the strings are answers of its targets.

    Returns:
        list of lists of int, token ids without EOS.
    """
    encode = get_task(task, vocabulary).output_features["targets"].vocabulary.encode
    return [list(encode(string)) for string in strings]
