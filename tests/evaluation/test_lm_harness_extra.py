"""Without lm-evaluation-harness, which is an extra."""

import importlib
import sys

import pytest

from remixer_tf.errors import UserError

MODULE = "remixer_tf.evaluation.lm_harness"


def test_who_lacks_the_harness_is_told_how_to_install_it(monkeypatch):
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    for name in ("lm_eval", "lm_eval.api.model"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'remixer_tf\[lm_eval\]'") as e:
        importlib.import_module(MODULE)
    assert isinstance(e.value, UserError)
