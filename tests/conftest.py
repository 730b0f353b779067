"""Every test starts from the same seeds; tests on real data run where there is some.

Under `KERAS_BACKEND=jax` nothing here imports TensorFlow, files called `*_tf.py` are
not collected, and tests that are marked `slow_on_jax` are slow, as those of engines and
training that are not marked `quick_on_jax`.
"""

import contextlib
import gc
import os
import pathlib
import random
import resource
import shutil
from importlib import metadata

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["REMIXER_TF_CACHE"] = ""  # Tests write nothing into the user's folder.
# Programs here run once: XLA need not spend the time on making them fast, nor on parts
# to be compiled by many cores.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

import pytest

# Imports and traced graphs stay: with Python's own threshold, looking for garbage among
# them takes a tenth of the time.
gc.set_threshold(50_000)
# The processes share the programs that JAX compiles, and the slow tests those of the
# quick ones: two thirds of JAX's time is compilation.
PROGRAMS = pathlib.Path(__file__).parents[1] / "build" / "jax_programs"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(PROGRAMS))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

SEED = 0
ON_TENSORFLOW = os.environ["KERAS_BACKEND"] == "tensorflow"
REAL_DATA = os.environ.get("REMIXER_TF_DATA")

collect_ignore_glob = [] if ON_TENSORFLOW else ["*_tf.py"]


def pytest_configure():
    if REAL_DATA and not pathlib.Path(REAL_DATA).is_dir():
        raise pytest.UsageError(
            "REMIXER_TF_DATA must name the folder that holds the real data files "
            f"(COGS in its subfolder cogs/). Received: {REAL_DATA!r}, which is no "
            "folder. Correct it, or unset it to skip the tests on real data."
        )


def pytest_report_header():
    names = "tensorflow keras jax tensorflow-text tensorflow-datasets seqio t5"
    installed = {dist.metadata["Name"].lower() for dist in metadata.distributions()}
    versions = [
        f"{name} {metadata.version(name) if name in installed else 'missing'}"
        for name in names.split()
    ]
    backend = os.environ["KERAS_BACKEND"]
    return [f"backend: {backend}", "versions: " + ", ".join(versions)]


def pytest_collection_modifyitems(items):
    for item in items:
        slow = item.path.parent.name in ("engines", "training")
        slow = slow and not item.get_closest_marker("quick_on_jax")
        if not ON_TENSORFLOW and (slow or item.get_closest_marker("slow_on_jax")):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slower"):
            item.add_marker(pytest.mark.slow)
    if REAL_DATA:
        return
    reason = "needs real data: set REMIXER_TF_DATA to the folder that holds it"
    for item in items:
        if item.get_closest_marker("real_data"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def real_data_dir():
    """The folder of the real data files, for tests marked `real_data`."""
    if not REAL_DATA:
        pytest.fail("A test that uses `real_data_dir` must be marked `real_data`.")
    return pathlib.Path(REAL_DATA)


@pytest.fixture(scope="session")
def make_once(tmp_path_factory):
    """A function (name, make) that returns a folder which `make(folder)` filled.

    One of the processes that share the tests makes it, and each has a copy. Paths
    inside are those of the first.
    """
    from tests.made_once import made_once

    def folder(name, make):
        made = made_once(name, make, tmp_path_factory)
        return shutil.copytree(made, tmp_path_factory.mktemp("once") / name)

    return folder


def _train_tiny_run(vocabulary, make_once):
    import gin

    from tests.tiny_run import train_run

    def make(folder):
        train_run(folder, vocabulary)
        gin.clear_config()

    return make_once(vocabulary, make)


@pytest.fixture(scope="session")
def bytes_run(make_once):
    """The folder of a run with one checkpoint, of step 1; see tests/tiny_run.py."""
    return _train_tiny_run("bytes", make_once)


@pytest.fixture(scope="session")
def words_run(make_once):
    """As `bytes_run`, with another model and vocabulary."""
    return _train_tiny_run("words", make_once)


@pytest.fixture(
    scope="session", params=["bytes", pytest.param("words", marks=pytest.mark.slower)]
)
def tiny_run(request):
    """Each of both runs, for what may depend on the model or the vocabulary."""
    return request.getfixturevalue(f"{request.param}_run")


@pytest.fixture
def clear_gin():
    """Takes no configuration from the tests before, and leaves none to the next."""
    import gin

    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture(autouse=True)
def same_seeds():
    import keras  # Not above: the process that distributes the tests needs none of it.
    import numpy as np

    if ON_TENSORFLOW:
        keras.utils.set_random_seed(SEED)
        return
    # keras.utils.set_random_seed imports TensorFlow wherever it is installed. Without
    # it, Keras draws its seeds from `random`, once its global generator is gone.
    keras.utils.clear_session(free_memory=False)
    random.seed(SEED)
    np.random.seed(SEED)


@pytest.fixture
def small_files():
    """A block `with small_files(N)`, where a file of more bytes fails to be written.

    It fails as a write to a full disk does.
    """

    @contextlib.contextmanager
    def limit(size):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    return limit
