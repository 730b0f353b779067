import importlib
import sys

import pytest
import seqio

import remixer_tf.tasks  # noqa: F401
from remixer_tf.tasks import t5_tasks


def test_t5_names_are_registered():
    assert "super_glue_v102_proportional" in seqio.MixtureRegistry.names()
    assert "c4_v220_span_corruption" in seqio.TaskRegistry.names()
    assert "glue_cola_v002" in seqio.TaskRegistry.names()


def test_a_missing_t5_names_the_command_that_installs_it(monkeypatch):
    for name in [*sys.modules]:
        if name.split(".")[0] == "t5":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "site-packages" not in p])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(ImportError, match=r"pip install --no-deps t5==0\.9\.4"):
        importlib.reload(t5_tasks)
