import functools
import importlib
import json
import sys

import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf import configuration
from remixer_tf.data import late_tasks
from remixer_tf.data.pipeline import get_task
from remixer_tf.evaluation.results import print_table, read_results
from remixer_tf.evaluation.task_metrics import compute_metrics
from remixer_tf.tasks import t5_tasks
from remixer_tf.tasks.t5_library import import_t5, in_percent
from remixer_tf.tasks.tables import table_task
from tests.data.toy_tasks import VOCABULARY, toy_task


def test_t5_names_are_registered():
    assert "super_glue_v102_proportional" in seqio.MixtureRegistry.names()
    assert "c4_v220_span_corruption" in seqio.TaskRegistry.names()
    assert "glue_cola_v002" in seqio.TaskRegistry.names()


@pytest.mark.slow
def test_the_mixture_of_remixers():
    """T5's en_mix: C4 at a rate of its own, all others by their numbers of examples."""
    mixture = seqio.MixtureRegistry.get("en_mix_span_corruption")
    names = {task.name for task in mixture.tasks}
    t5s = {task.name for task in seqio.MixtureRegistry.get("en_mix").tasks}
    assert t5s - names == {"c4_v020_unsupervised"}
    assert names - t5s == {"c4_v220_span_corruption"}
    of_text = seqio.MixtureRegistry.get("en_mix_text_span_corruption")
    assert {t.name for t in of_text.tasks} ^ names == {
        "c4_v220_span_corruption",
        "text_span_corruption",
    }

    def dataset_fn(split, shuffle_files, seed=None):
        return tf.data.Dataset.from_tensor_slices({"text": ["abcdefghijklmnopqrst"]})

    features = dict.fromkeys(
        ("inputs", "targets"), seqio.Feature(seqio.ByteVocabulary(100))
    )
    rates, examples = {}, {}
    for task in mixture.tasks:
        source = seqio.FunctionDataSource(
            dataset_fn, splits=["train"], num_input_examples={"train": 70}
        )
        task = task.replace(source=source, output_features=features)
        rates[task.name] = mixture.get_rate(task)
        if task.name.startswith("c4"):
            lengths = {"inputs": 32, "targets": 10}
            examples = list(task.get_dataset(lengths, seed=0).as_numpy_iterator())
    assert rates.pop("c4_v220_span_corruption") == 1e6
    assert set(rates.values()) == {70}
    assert [{k: x.tolist() for k, x in e.items()} for e in examples] == [
        {"inputs": [*range(100, 117), 358, 1], "targets": [358, 117, 118, 119, 1]}
    ]


@pytest.fixture
def without_t5(monkeypatch):
    """As a process that has imported nothing of t5's, where it is not installed."""
    for name in [*sys.modules]:
        if name.split(".")[0] == "t5":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "t5", None)
    monkeypatch.setattr(late_tasks, "_waiting", [lambda: importlib.reload(t5_tasks)])
    import_t5.cache_clear()
    yield
    import_t5.cache_clear()


@pytest.mark.usefixtures("without_t5", "clear_gin")
def test_without_t5_only_what_is_of_t5_fails():
    files = {"train": "a.tsv"}
    for metric in ("accuracy", "exact_match", "f1", "per_class"):
        task = table_task(files, "{0}", "{1}", metrics=[metric])
        assert task.metric_fns[0](["a", "b"], ["a", "c"])
    assert get_task("mini_cogs").name == "mini_cogs"
    install = r"[^\n]*pip install --no-deps t5==0\.9\.4[^\n]*$"
    with pytest.raises(ImportError, match=install):
        table_task(files, "{0}", "{1}", metrics=["rouge"])
    with pytest.raises(ValueError, match=f"glue_x.*{install}"):
        get_task("glue_x")
    with pytest.raises(configuration.UserError, match=f"no_such.*{install}"):
        configuration.read([], ["no_such.verbose = False"])


@pytest.mark.usefixtures("clear_gin")
def test_gin_knows_what_t5_registers(monkeypatch):
    """As the operative configuration of a run that corrupts spans has it."""
    called = []
    monkeypatch.setattr(late_tasks, "_waiting", [lambda: called.append(1)])
    configuration.read([], ["random_spans_helper.verbose = False"])
    assert not called  # t5 is imported here
    with pytest.raises(configuration.UserError, match="knows no 'random_spens'"):
        configuration.read([], ["random_spens.verbose = False"])
    assert called == [1]


LABELS, TEXTS = [0, 1, 1, 0], ["a b", "c", "d e f", "g"]
GROUPED = [{"group": i, "value": label} for i, label in enumerate(LABELS)]
RANKED = [((i, j), i % 2 == j, 1.0, 1) for i in range(4) for j in range(2)]
SCORES = [0.0 if right else -9.0 for _, right, _, _ in RANKED]
# Right answers: targets and predictions of each metric.
PERFECT = {
    **{x: (LABELS, LABELS) for x in ("accuracy", "all_match", "sequence_accuracy")},
    **{x: (LABELS, LABELS) for x in ("pearson_corrcoef", "spearman_corrcoef")},
    **{x: ([[t] for t in TEXTS], TEXTS) for x in ("squad", "trivia_qa", "coqa_f1")},
    "bleu": (["a b c d e"], ["a b c d e"]),
    "rouge": (["a b c"], ["a b c"]),
    "span_squad": ([{"context": "a b c", "answers": ["b"]}], ["start: 1 end: 1"]),
    "f1_score_with_invalid": (LABELS, LABELS),
    "multirc_f1_over_all_answers": (GROUPED, GROUPED),
    "rank_classification": (RANKED, SCORES),
    "auc": (LABELS, LABELS),
    "score_auc": (LABELS, LABELS),
    "edit_distance": (TEXTS, TEXTS),
}


def test_t5s_percentages():
    """A metric of T5's is in percent if all right answers have 100."""
    t5 = import_t5("evaluation.metrics")
    cases = [(getattr(t5, name), *perfect) for name, perfect in PERFECT.items()]
    makers = t5.deduplicate_metric, t5.mean_group_metric
    cases += [(make(t5.accuracy), GROUPED, GROUPED) for make in makers]
    cases += [(make(t5.auc), GROUPED, GROUPED) for make in makers[:1]]
    cases += [
        (t5.mean_multiclass_f1(2), LABELS, LABELS),
        (t5.sklearn_metrics_wrapper("matthews_corrcoef"), LABELS, LABELS),
        (functools.partial(t5.accuracy), LABELS, LABELS),
    ]
    glue = import_t5("data.glue_utils")
    cases += [(metric, LABELS, LABELS) for metric in glue.get_glue_metric("cola")]
    for metric, targets, predictions in cases:
        values = metric(targets, predictions).values()
        percent = all(value == pytest.approx(100) for value in values)
        assert in_percent(metric) == percent, metric

    def accuracy(targets, predictions):
        return {"accuracy": 1.0}

    assert not in_percent(accuracy)


def test_the_table_of_a_task_of_t5_has_units(tmp_path, capsys):
    """Also where the result is read from its file."""
    t5 = import_t5("evaluation.metrics")
    task = toy_task({"dev": []}, metric_fns=[t5.accuracy, t5.edit_distance])
    examples = [{"targets_pretokenized": text} for text in ("b", "c")]
    tokens = np.array([VOCABULARY.encode(text) for text in ("b", "b")])
    outputs = {seqio.metrics.ModelOutputType.PREDICTION: tokens}
    metrics = compute_metrics(task, examples, outputs)
    assert metrics["accuracy"] == 50
    assert [x for x in metrics if hasattr(metrics[x], "unit")] == ["accuracy"]
    result = {"task": "toy", "split": "dev", "step": 3, "metrics": metrics}
    path = tmp_path / "eval" / "toy" / "dev" / "3"
    path.mkdir(parents=True)
    text = json.dumps(result | {"units": {"accuracy": "%"}})
    (path / "metrics.json").write_text(text)
    (found,) = read_results(str(tmp_path))
    print_table("toy", 3, {"dev": found})
    assert "accuracy (%)" in capsys.readouterr().out
