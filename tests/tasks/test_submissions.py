"""Files for the benchmarks' sites."""

import json

import pytest
import seqio

import remixer_tf.tasks  # noqa: F401
from remixer_tf.tasks.submissions import has_submission, submission


def written(task, *answers, targets="<unk>"):
    """The name and the lines of the file of answers, each (idx, text)."""
    records = [
        {"idx": idx, "prediction": text, "target": targets} for idx, text in answers
    ]
    name, text = submission(seqio.TaskRegistry.get(task), records)
    return name, text.splitlines()


@pytest.mark.parametrize(
    ("task", "answer", "name", "line"),
    [
        ("super_glue_boolq_v102", "True", "BoolQ.jsonl", {"idx": 4, "label": "true"}),
        ("super_glue_cb_v102", "neutral", "CB.jsonl", {"idx": 4, "label": "neutral"}),
        ("super_glue_copa_v102", "choice2", "COPA.jsonl", {"idx": 4, "label": 1}),
        (
            "super_glue_rte_v102",
            "not_entailment",
            "RTE.jsonl",
            {"idx": 4, "label": "not_entailment"},
        ),
        ("super_glue_wic_v102", "False", "WiC.jsonl", {"idx": 4, "label": "false"}),
        (
            "super_glue_axb_v102",
            "entailment",
            "AX-b.jsonl",
            {"idx": 4, "label": "entailment"},
        ),
        ("glue_cola_v002", "acceptable", "CoLA.tsv", "4\t1"),
        ("glue_mrpc_v002", "not_equivalent", "MRPC.tsv", "4\t0"),
        ("glue_stsb_v002", "3.8", "STS-B.tsv", "4\t3.800"),
        ("glue_stsb_v002", "7.0", "STS-B.tsv", "4\t5.000"),
        ("glue_mnli_matched_v002", "contradiction", "MNLI-m.tsv", "4\tcontradiction"),
        ("glue_qnli_v002", "entailment", "QNLI.tsv", "4\tentailment"),
        ("glue_ax_v002", "neutral", "AX.tsv", "4\tneutral"),
    ],
)
def test_an_answer_of_each_kind(task, answer, name, line):
    assert has_submission(task, "test")
    file, lines = written(task, (4, answer))
    assert file == name
    if isinstance(line, dict):
        assert list(map(json.loads, lines)) == [line]
    else:
        assert lines == ["index\tprediction", line]


def test_the_span_check_of_wsc():
    task = "super_glue_wsc_v102_simple_eval"
    answers = [(1, "Mark"), (0, "the Pete")]
    name, lines = written(task, *answers, targets="Pete")
    assert name == "WSC.jsonl"
    assert list(map(json.loads, lines)) == [
        {"idx": 0, "label": "True"},
        {"idx": 1, "label": "False"},
    ]
    assert written("glue_wnli_v002_simple_eval", *answers, targets="Pete") == (
        "WNLI.tsv",
        ["index\tprediction", "0\t1", "1\t0"],
    )


def test_multirc_has_a_line_for_each_paragraph():
    keys = [(3, 5, 9), (3, 5, 8), (3, 6, 10), (2, 4, 7)]
    name, lines = written(
        "super_glue_multirc_v102",
        *(
            ({"paragraph": p, "question": q, "answer": a}, str(a == 9))
            for p, q, a in keys
        ),
    )
    assert name == "MultiRC.jsonl"
    assert list(map(json.loads, lines)) == [
        {
            "idx": 2,
            "passage": {"questions": [{"idx": 4, "answers": [{"idx": 7, "label": 0}]}]},
        },
        {
            "idx": 3,
            "passage": {
                "questions": [
                    {
                        "idx": 5,
                        "answers": [{"idx": 8, "label": 0}, {"idx": 9, "label": 1}],
                    },
                    {"idx": 6, "answers": [{"idx": 10, "label": 0}]},
                ]
            },
        },
    ]


def test_record_has_the_text_of_each_query():
    answer = ({"passage": 1, "query": 7}, "São Paulo")
    name, lines = written("super_glue_record_v102", answer)
    assert (name, lines) == ("ReCoRD.jsonl", ['{"idx": 7, "label": "São Paulo"}'])


def test_what_is_no_label_is_counted(caplog):
    answers = [(0, "negative"), (1, "good"), (2, "positive")]
    lines = written("glue_sst2_v002", *answers)[1]
    assert lines == ["index\tprediction", "0\t0", "1\t0", "2\t1"]
    assert "SST-2.tsv: 1 of 3 answers are no label" in caplog.text


def test_predictions_without_idx():
    task = seqio.TaskRegistry.get("glue_sst2_v002")
    with pytest.raises(ValueError, match="glue_sst2_v002 are of an earlier version"):
        submission(task, [{"prediction": "positive", "target": ""}])
