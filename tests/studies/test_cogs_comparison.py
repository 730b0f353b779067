"""The comparison on COGS: equal parameters, its table, and two models trained."""

import math

import pytest

from remixer_tf import configuration
from remixer_tf.models.build import declare
from studies import cogs
from studies.cogs import MODELS
from tests.settings import value_of

pytestmark = pytest.mark.usefixtures("clear_gin")


def built(model):
    model.build()
    return model


@pytest.mark.slow
def test_models_have_equal_parameters():
    counts = {}
    for name, model in MODELS.items():
        bindings = [*model.bindings, "VOCABULARY_FILE = None", "VOCAB_SIZE = 896"]
        settings = configuration.read([model.file, cogs.RUN_FILE], bindings)
        factory = value_of(settings, "Run.model")
        variables = declare(lambda make=factory: built(make())).trainable_variables
        counts[name] = sum(math.prod(v.shape) for v in variables)
    assert max(counts.values()) / min(counts.values()) < 1.01
    assert counts["t5_1_1"] == pytest.approx(9.5e6, rel=0.03)  # Kim and Linzen's


def made_up(lexical):
    of_gen = {"exact_match": 30.0, "exact_match/lexical": lexical}
    of_gen |= {"exact_match/type/cp_recursion": 0.0}
    of_test = {"exact_match": 99.0, "exact_match/type/in_distribution": 99.0}
    metrics = {"gen": of_gen, "test": of_test}
    return {"parameters": 9317376, "loss": 0.01234, "metrics": metrics}


def test_report():
    results = {
        "remixer": [made_up(40.0), made_up(44.0)],
        "gmlp": [made_up(20.0), made_up(20.0)],
    }
    assert cogs.report(results).splitlines() == [
        "| exact match in %, 2 seeds | remixer | gmlp |",
        "| --- | ---: | ---: |",
        "| parameters | 9,317,376 | 9,317,376 |",
        "| gen in the paper, pre-trained, base size | 79.2 | – |",
        "| loss on dev | 0.0123 ± 0.0000 | 0.0123 ± 0.0000 |",
        "| test | 99.0 ± 0.0 | 99.0 ± 0.0 |",
        "| gen | 30.0 ± 0.0 | 30.0 ± 0.0 |",
        "| gen, lexical | 42.0 ± 2.8 | 20.0 ± 0.0 |",
        "| gen, cp_recursion | 0.0 ± 0.0 | 0.0 ± 0.0 |",
    ]
