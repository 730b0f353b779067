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
