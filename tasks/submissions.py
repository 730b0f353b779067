"""The files for GLUE's and SuperGLUE's sites, from predictions on test sets.

GLUE: a line for each example with its index, a tab and the prediction, under the header
"index", "prediction". SuperGLUE: JSON lines, {"idx": 0, "label": "true"}; MultiRC has
one for each paragraph, ReCoRD one for each query. See gluebenchmark.com and
super.gluebenchmark.com.
"""

import json

from absl import logging

from remixer_tf.errors import UserError
from remixer_tf.tasks.entailment import THREE_CLASSES, TWO_CLASSES

_01, _FALSE_TRUE = [0, 1], ["false", "true"]
# The file, and the labels in the order of the class ids; None for the answer itself.
_FILES = {
    "super_glue_boolq_v102": ("BoolQ.jsonl", _FALSE_TRUE),
    "super_glue_cb_v102": ("CB.jsonl", ["entailment", "contradiction", "neutral"]),
    "super_glue_copa_v102": ("COPA.jsonl", _01),
    "super_glue_multirc_v102": ("MultiRC.jsonl", _01),
    "super_glue_record_v102": ("ReCoRD.jsonl", None),
    "super_glue_rte_v102": ("RTE.jsonl", TWO_CLASSES),
    "super_glue_wic_v102": ("WiC.jsonl", _FALSE_TRUE),
    "super_glue_wsc_v102_simple_eval": ("WSC.jsonl", ["False", "True"]),
    "super_glue_axb_v102": ("AX-b.jsonl", TWO_CLASSES),
    "super_glue_axg_v102": ("AX-g.jsonl", TWO_CLASSES),
    "glue_cola_v002": ("CoLA.tsv", _01),
    "glue_sst2_v002": ("SST-2.tsv", _01),
    "glue_mrpc_v002": ("MRPC.tsv", _01),
    "glue_qqp_v002": ("QQP.tsv", _01),
    "glue_stsb_v002": ("STS-B.tsv", None),
    "glue_mnli_matched_v002": ("MNLI-m.tsv", THREE_CLASSES),
    "glue_mnli_mismatched_v002": ("MNLI-mm.tsv", THREE_CLASSES),
    "glue_qnli_v002": ("QNLI.tsv", TWO_CLASSES),
    "glue_rte_v002": ("RTE.tsv", TWO_CLASSES),
    "glue_wnli_v002_simple_eval": ("WNLI.tsv", _01),
    "glue_ax_v002": ("AX.tsv", THREE_CLASSES),
}


def has_submission(task, split):
    """Whether a split of a task, both names, is a test set of GLUE or SuperGLUE."""
    return split == "test" and task in _FILES


def submission(task, records):
    """Returns the name and the text of the file of a test set's predictions.

    An answer that is no class becomes the first class, one that is no number becomes 0;
    a warning has their number. The task's name `has_submission`, the records are those
    of `list_predictions`.
    """
    if any("idx" not in record for record in records):
        raise UserError(
            f"The predictions of {task.name} are of an earlier version, without idx. "
            "Remove them from the run's folder eval, and evaluate again."
        )
    name, labels = _FILES[task.name]
    predictions, wrong = {}, 0
    for record in records:
        value = task.postprocess_fn(
            record["prediction"],
            example={"targets_pretokenized": record["target"].encode()},
            is_target=False,
        )
        value = value["value"] if isinstance(value, dict) else value
        if labels:
            wrong += value == -1
            value = labels[max(value, 0)]
        elif name == "STS-B.tsv":
            wrong += value == -1
            value = f"{min(max(value, 0.0), 5.0):.3f}"
        predictions[_key(record["idx"])] = value
    if wrong:
        logging.warning(
            "%s: %d of %d answers are no label; they count as the first one.",
            name,
            wrong,
            len(predictions),
        )
    rows = sorted(predictions.items())
    if name.endswith(".tsv"):
        lines = ["index\tprediction", *(f"{i}\t{label}" for (i,), label in rows)]
    elif name == "MultiRC.jsonl":
        lines = map(json.dumps, _multirc(rows))
    else:
        lines = (
            json.dumps({"idx": idx[-1], "label": label}, ensure_ascii=False)
            for idx, label in rows
        )
    return name, "".join(f"{line}\n" for line in lines)


def _key(idx):
    """The numbers of an example, such as (paragraph, question, answer)."""
    if not isinstance(idx, dict):
        return (idx,)
    parts = ("paragraph", "passage", "question", "query", "answer")
    return tuple(idx[part] for part in parts if part in idx)


def _multirc(rows):
    paragraphs = {}
    for (paragraph, question, answer), label in rows:
        answers = paragraphs.setdefault(paragraph, {}).setdefault(question, [])
        answers.append({"idx": answer, "label": label})
    for paragraph, questions in paragraphs.items():
        asked = [{"idx": i, "answers": answers} for i, answers in questions.items()]
        yield {"idx": paragraph, "passage": {"questions": asked}}
