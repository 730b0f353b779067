import importlib
import sys

import pytest
import seqio
import tensorflow as tf

import remixer_tf.tasks  # noqa: F401
from remixer_tf.tasks import t5_tasks


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


def test_a_missing_t5_names_the_command_that_installs_it(monkeypatch):
    for name in [*sys.modules]:
        if name.split(".")[0] == "t5":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "site-packages" not in p])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(ImportError, match=r"pip install --no-deps t5==0\.9\.4"):
        importlib.reload(t5_tasks)
