"""SuperGLUE's average: of the paper's rows, and in what evaluation prints."""

import pytest
import seqio

from remixer_tf.tasks.super_glue import SETS, super_glue_average
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


def metrics_of(row):
    """{task: {metric: number}} of a row, and its average."""
    *sets, average = row.split()
    values = [[float(x) for x in cell.split("/")] for cell in sets]
    metrics = {
        task: dict(zip(names, numbers, strict=True))
        for (task, names), numbers in zip(SETS.items(), values, strict=True)
    }
    return metrics, float(average)


@pytest.mark.parametrize("row", ROWS)
def test_the_papers_rows(row):
    metrics, average = metrics_of(ROWS[row])
    assert abs(super_glue_average(metrics) - average) < 0.05 + 1e-9  # its rounding


def test_a_set_that_is_missing_gives_no_average():
    metrics, _ = metrics_of(ROWS["CBoW"])
    del metrics["super_glue_record_v102"]["em"]
    assert super_glue_average(metrics) is None
    assert super_glue_average({}) is None


def test_t5_has_these_tasks_and_metrics():
    answer = {"value": 1, "group": 0}
    entities = {"value": ["a"], "group": 0}, {"value": "a", "group": 0}
    for name, metrics in SETS.items():
        task = seqio.TaskRegistry.get(name)
        given = {"record": entities, "multirc": (answer, answer)}
        target, prediction = given.get(name.split("_")[2], (1, 1))
        computed = {}
        for metric in task.metric_fns:
            computed |= metric([target], [prediction])
        assert computed.keys() == set(metrics)


def test_eval_prints_the_average_of_a_mixture(tmp_path, capsys):
    tasks = [toy_task({"dev": DEV[:n]}, name=f"toy_{n}") for n in (2, 5)]
    mixture = seqio.Mixture("toy_both", [(task, 1) for task in tasks])

    def mean(metrics):
        return sum(100 * values["em"] for values in metrics.values()) / len(metrics)

    decoded(mixture, average=mean).run(str(tmp_path), shift_engine(), 3)
    assert "toy_both dev: average 80.0" in capsys.readouterr().out
