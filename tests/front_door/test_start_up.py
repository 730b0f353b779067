"""Answering imports no library that it needs not; each comes when it is used."""

import pathlib
import re
import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement

UNWANTED = {
    *("clu", "flax", "jax", "matplotlib", "pyglove", "scipy", "sklearn"),
    *("tensorflow_datasets", "t5", "seqio.evaluation"),
}
COMMAND = """
import sys
sys.argv = ["remixer_tf", "infer", "--model_dir=RUN", "--input=/dev/null"]
from remixer_tf.__main__ import main
main()
assert "pandas" not in sys.modules
"""
PYTHON = """
import sys
import remixer_tf as rt
assert len(rt.load("RUN").generate(["a cat"])) == 1
"""
LATER = """
import importlib.util
import keras, seqio
import tensorflow as tf
unwanted = {*UNWANTED} & {*sys.modules}
assert not unwanted, unwanted

from tensorflow_datasets.core.registered import DatasetNotFoundError
import clu.metrics, tensorflow_datasets as tfds
assert seqio.dataset_providers.tfds.Split is tfds.Split
assert issubclass(seqio.metrics.Metric, clu.metrics.Metric)
assert seqio.dataset_providers.metrics_lib.Metric is seqio.metrics.Metric
assert issubclass(seqio.evaluation.Evaluator, object) and seqio.Evaluator
assert issubclass(seqio.TensorBoardLogger, seqio.loggers.Logger)
from seqio import helpers, test_utils
for name in ("no_such_name", "__no_such_name__"):
    assert not hasattr(seqio, name)
assert {"jax", "tensorflow_datasets"} <= {*sys.modules}
assert keras.visualization.plot_image_gallery and keras.wrappers.SKLearnClassifier
assert keras.visualization.plot_image_gallery and tf.lite.TFLiteConverter
for name in ("matplotlib", "pandas", "scipy", "sklearn"):
    assert importlib.util.find_spec(name)  # A user's task may import them.
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [pytest.param(COMMAND, marks=pytest.mark.slower), PYTHON],
    ids=["infer", "load"],
)
def test_answering_imports_what_it_needs(code, bytes_run):
    code = code.replace("RUN", str(bytes_run)) + LATER.replace(
        "UNWANTED", f"{UNWANTED}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def installed_with(names):
    """The names of distributions, and of all that they ask for, without extras."""
    found, left = set(), [*names]
    while left:
        name = re.sub("[-_.]+", "-", left.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            requirements = map(Requirement, metadata.requires(name) or ())
        except metadata.PackageNotFoundError:  # an extra's
            continue
        for requirement in requirements:
            marker = requirement.marker
            if marker is None or marker.evaluate({"extra": ""}):
                left.append(requirement.name)
    return found


WITHOUT = """
import sys
class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing)
"""


@pytest.mark.slow
def test_the_small_installation_of_the_guide_answers(bytes_run):
    guide = pathlib.Path(__file__).parents[2] / "docs/guides/installing.md"
    section = guide.read_text().split("## Only to answer")[1]
    listed = re.search(r"constraints.txt (.*?)\npip", section, re.DOTALL)[1]
    there = installed_with(listed.replace("\\", "").split()) | {"seqio", "remixer-tf"}
    missing = {
        module
        for module, homes in metadata.packages_distributions().items()
        if not there & {re.sub("[-_.]+", "-", home).lower() for home in homes}
    }
    assert {"jax", "matplotlib", "scipy", "sklearn", "tensorflow_datasets"} < missing
    code = WITHOUT.replace("MISSING", f"{missing}") + PYTHON
    code = code.replace("RUN", str(bytes_run))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
