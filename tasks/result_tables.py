"""The papers' tables: a row for the sets of a benchmark, and their average.

The numbers are percentages on the validation sets of T5's tasks.
"""

import dataclasses

_MNLI = [(f"glue_mnli_{part}_v002", "accuracy") for part in ("matched", "mismatched")]


@dataclasses.dataclass(frozen=True)
class ResultTable:
    """A row of sets."""

    name: str  # the average is the metric `<name>_average`
    columns: dict  # column -> its numbers, a list of pairs (task, metric)
    averaged: bool = True  # whether there is an average, that of the columns' averages

    def row(self, metrics):
        """Returns {column: list of numbers} from {task: {metric: number}}.

        None stands for a missing number.
        """
        return {
            column: [metrics.get(task, {}).get(metric) for task, metric in cell]
            for column, cell in self.columns.items()
        }

    def average(self, metrics):
        """Returns the average, or None if it has none or a number is missing."""
        cells = self.row(metrics).values()
        if not self.averaged or any(None in cell for cell in cells):
            return None
        return sum(sum(cell) / len(cell) for cell in cells) / len(cells)


def super_glue_table():
    """SuperGLUE: "Remixers", Table 2.

    The average is that of Wang et al., "SuperGLUE: A Stickier Benchmark for
    General-Purpose Language Understanding Systems", 2019, and the paper's "Avg".
    """
    sets = {
        "BoolQ": "boolq_v102 accuracy",
        "CB": "cb_v102 accuracy mean_3class_f1",
        "COPA": "copa_v102 accuracy",
        "MultiRC": "multirc_v102 f1 exact_match",
        "ReCoRD": "record_v102 f1 em",
        "RTE": "rte_v102 accuracy",
        "WiC": "wic_v102 accuracy",
        "WSC": "wsc_v102_simple_eval accuracy",
    }
    return ResultTable("super_glue", _columns("super_glue_{}", sets))


def glue_table():
    """GLUE without WNLI: the average of Wang et al., "GLUE", 2019; MNLI counts once."""
    sets = {
        "CoLA": "cola matthews_corrcoef",
        "SST-2": "sst2 accuracy",
        "MRPC": "mrpc f1 accuracy",
        "STS-B": "stsb pearson_corrcoef spearman_corrcoef",
        "QQP": "qqp f1 accuracy",
        "MNLI-m/mm": "",
        "QNLI": "qnli accuracy",
        "RTE": "rte accuracy",
    }
    columns = _columns("glue_{}_v002", sets) | {"MNLI-m/mm": _MNLI}
    return ResultTable("glue", columns)


def inference_table():
    """Entailment: "Remixers", Table 3, which has no average."""
    columns = {
        "MNLI-m/mm": _MNLI,
        "AdvNLI-1/2/3": [(f"anli_r{number}", "accuracy") for number in (1, 2, 3)],
        "ConjNLI": [("conjnli", "accuracy")],
        "AbNLI": [("art", "accuracy")],
        "QNLI": [("glue_qnli_v002", "accuracy")],
    }
    return ResultTable("inference", columns, averaged=False)


def _columns(task, sets):
    cells = {column: text.split() for column, text in sets.items()}
    return {
        column: [(task.format(cell[0]), metric) for metric in cell[1:]]
        for column, cell in cells.items()
    }
