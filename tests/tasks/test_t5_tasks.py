import importlib
import sys

import pytest
import seqio
import tensorflow as tf

from remixer_tf import configuration
from remixer_tf.data import late_tasks
from remixer_tf.data.pipeline import get_task
from remixer_tf.tasks import t5_tasks
from remixer_tf.tasks.t5_library import import_t5
from remixer_tf.tasks.tables import table_task


def test_t5_names_are_registered():
    assert "super_glue_v102_proportional" in seqio.MixtureRegistry.names()
    assert "c4_v220_span_corruption" in seqio.TaskRegistry.names()
    assert "glue_cola_v002" in seqio.TaskRegistry.names()


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
        configuration.parse_gin([], ["no_such.verbose = False"])


@pytest.mark.usefixtures("clear_gin")
def test_gin_knows_what_t5_registers(monkeypatch):
    """As the operative configuration of a run that corrupts spans has it."""
    called = []
    monkeypatch.setattr(late_tasks, "_waiting", [lambda: called.append(1)])
    configuration.parse_gin([], ["random_spans_helper.verbose = False"])
    assert not called  # t5 is imported here
    with pytest.raises(configuration.UserError, match="knows no 'random_spens'"):
        configuration.parse_gin([], ["random_spens.verbose = False"])
    assert called == [1]
