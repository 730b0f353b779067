"""The papers' tables: their averages, and what evaluation prints and keeps of them."""

import os

import pytest
import seqio

from remixer_tf.evaluation.best import Best
from remixer_tf.evaluation.results import read_results
from remixer_tf.tasks.result_tables import (
    ResultTable,
    glue_table,
    inference_table,
    super_glue_table,
)
from tests.data.toy_tasks import toy_task
from tests.evaluation.shift import DEV, decoded, shift_engine

# "Remixers", Table 2: BoolQ, CB, COPA, MultiRC, ReCoRD, RTE, WiC, WSC, average.
ROWS = {
    "CBoW": "62.4 71.4/49.6 63 20.3/0.3 14.4/13.8 54.2 55.3 61.5 47.7",
    "BERT large": "77.7 94.6/93.7 69 70.5/24.7 70.6/69.8 75.8 74.9 68.3 72.2",
    "BERT+ large": "80.1 96.4/95.0 78 70.5/24.7 70.6/69.8 82.3 74.9 68.3 74.6",
    "Mixer_Enc": "67.9 65.7/66.1 59 56.6/9.7 53.8/52.4 54.5 56.4 64.4 56.8",
    "Mixer_EncDec": "62.2 79.9/80.4 56 53.3/0.3 52.7/48.7 49.1 50.0 64.4 54.9",
    "T5 base": "77.8 92.4/92.9 75 72.2/30.4 73.7/72.8 75.8 69.7 82.7 74.8",
    "T5.1.1 base": "79.3 92.4/92.9 72 74.2/32.8 74.9/73.9 79.8 70.2 81.7 75.4",
    "T5.1.1 base MT": "82.8 89.2/92.9 65 78.6/44.2 77.9/77.1 84.1 68.3 79.8 76.2",
    "Remixer SBase": "80.2 98.7/98.2 65 76.0/35.9 75.6/74.8 81.6 69.1 82.7 76.0",
    "Remixer base": "80.5 96.4/98.1 68 74.4/32.7 77.8/77.0 81.2 72.3 84.6 76.9",
    "Remixer base MT": "81.4 94.3/96.4 77 77.5/42.6 78.1/77.2 85.2 69.4 88.5 79.3",
}


SETS = super_glue_table()


def metrics_of(row):
    """{task: {metric: number}} of a row, and its average."""
    *sets, average = row.split()
    metrics = {}
    for cell, numbers in zip(SETS.columns.values(), sets, strict=True):
        for (task, metric), number in zip(cell, numbers.split("/"), strict=True):
            metrics.setdefault(task, {})[metric] = float(number)
    return metrics, float(average)


@pytest.mark.parametrize("row", ROWS)
def test_the_papers_rows(row):
    metrics, average = metrics_of(ROWS[row])
    assert abs(SETS.average(metrics) - average) < 0.05 + 1e-9  # its rounding


def test_a_set_that_is_missing_gives_no_average():
    metrics, _ = metrics_of(ROWS["CBoW"])
    del metrics["super_glue_record_v102"]["em"]
    assert SETS.average(metrics) is None
    assert SETS.row(metrics)["ReCoRD"] == [14.4, None]
    assert SETS.average({}) is None
    everything = {
        task: {metric: 1.0}
        for cell in inference_table().columns.values()
        for task, metric in cell
    }
    assert inference_table().average(everything) is None  # The paper has none.


def test_glues_score_of_bert_large():
    """Of test sets, on GLUE's site: 80.5 together with WNLI, which has 65.1."""
    row = "60.5 94.9 89.3/85.4 87.6/86.5 72.1/89.3 86.7/85.9 92.7 70.1"
    metrics = {}
    for cell, numbers in zip(glue_table().columns.values(), row.split(), strict=True):
        for (task, metric), number in zip(cell, numbers.split("/"), strict=True):
            metrics.setdefault(task, {})[metric] = float(number)
    score = (8 * glue_table().average(metrics) + 65.1) / 9
    assert score == pytest.approx(80.5, abs=0.05)


def test_t5_has_these_tasks_and_metrics():
    answer = {"value": 1, "group": 0}
    entities = {"value": ["a"], "group": 0}, {"value": "a", "group": 0}
    for table in (super_glue_table(), glue_table(), inference_table()):
        for cell in table.columns.values():
            for name in dict.fromkeys(task for task, _ in cell):
                task = seqio.TaskRegistry.get(name)
                given = {"record": (entities,), "multirc": ((answer, answer),)}
                pairs = given.get(name[11:].split("_")[0], ((1, 1), (0, 0)))
                computed = {}
                for metric in task.metric_fns:
                    computed |= metric(*map(list, zip(*pairs, strict=True)))
                assert {m for t, m in cell if t == name} == set(computed), name


TOY = ResultTable("toy", {"Two": [("toy_2", "em")], "Five": [("toy_5", "em")] * 2})


@pytest.mark.slow
def test_best_reads_the_average(tmp_path):
    tasks = [toy_task({"dev": DEV[:n]}, name=f"toy_{n}") for n in (2, 5)]
    mixture = seqio.Mixture("toy_both", [(task, 1) for task in tasks])
    evaluation = decoded(mixture, tables=[TOY, super_glue_table()])
    engine = shift_engine()
    for step, shift in ((3, 1.0), (4, 7.0)):
        engine.model.shift.assign(shift)
        results = evaluation.run(str(tmp_path), engine, step)
    assert results["toy_both"]["dev"]["metrics"] == {"toy_average": 0.0}
    results = [r for r in read_results(str(tmp_path)) if r["task"] == "toy_both"]
    assert [r["metrics"] for r in results] == [
        {"toy_average": 0.8},
        {"toy_average": 0.0},
    ]
    curves = tmp_path / "tensorboard" / "train" / "eval"
    assert sorted(os.listdir(curves)) == ["toy_2", "toy_5", "toy_both"]
    best = Best("toy_both/dev/toy_average")
    best.check([evaluation])
    assert best.find(str(tmp_path), [evaluation], engine.model, 4)[:2] == (3, 0.8)
    with pytest.raises(ValueError, match="Nearest: toy_both/dev/toy_average"):
        Best("toy_both/dev/super_glue_average").check([evaluation])
