from remixer_tf.tasks import text_metrics as metrics
from remixer_tf.tasks.text_metrics import TargetWithType


def test_postprocess_normalises_whitespace_and_keeps_the_type_of_targets():
    assert metrics.postprocess(" a  ( x\t_ 1 )\n") == "a ( x _ 1 )"
    assert metrics.postprocess(
        "a  b", example={"type": b"cp_recursion"}, is_target=True
    ) == TargetWithType("a b", "cp_recursion")


def test_exact_match_by_type_and_kind():
    metric = metrics.exact_match_by_type({"p": "lexical", "q": "structural"})
    targets = [
        TargetWithType("a", "p"),
        TargetWithType("b", "p"),
        TargetWithType("c", "q"),
        TargetWithType("d", "elsewhere"),
    ]
    assert metric(targets, ["a", "x", "c", "D"]) == {
        "exact_match": 50.0,
        "exact_match/lexical": 50.0,
        "exact_match/structural": 100.0,
        "exact_match/type/p": 50.0,
        "exact_match/type/q": 100.0,
        "exact_match/type/elsewhere": 0.0,
    }


def test_f1_of_texts_that_normalise_to_nothing():
    """Only equal ones are right; SQuAD's script has 0 for all of these."""
    targets = ["+", "+", "the", "a", "+ a", ""]
    predictions = ["+", "-", "the", "the", "", ""]
    found = [
        metrics.f1([x], [y])["f1"] for x, y in zip(targets, predictions, strict=True)
    ]
    assert found == [100, 0, 100, 0, 0, 100]
    # Shared words still count by SQuAD's rule: 1 of 1, and 1 of 2.
    assert abs(metrics.f1(["the cat."], ["a big cat"])["f1"] - 200 / 3) < 1e-9
