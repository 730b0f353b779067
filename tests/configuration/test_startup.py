"""What a command says before TensorFlow is there."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

RUN = """
import sys
from remixer_tf import configuration
configuration.load_tensorflow()
configuration.load_tensorflow()
assert "tensorflow" in sys.modules
print("loaded", file=sys.stderr)
"""


def errors_of(code, **environment):
    environment = {k: v for k, v in {**os.environ, **environment}.items() if v}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_one_line_and_none_of_tensorflows():
    lines = errors_of(RUN, TF_CPP_MIN_LOG_LEVEL="")
    assert lines == ["loading TensorFlow ...", "loaded"]


def test_what_is_told_while_it_loads_is_kept(tmp_path):
    """A module that TensorFlow imports warns."""
    (tmp_path / "tensorflow.py").write_text(
        "import os\nos.write(2, b'a warning\\n')\n"
        "class config:\n  list_physical_devices = staticmethod(lambda: [])\n"
    )
    lines = errors_of(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{RUN}")
    assert lines == ["loading TensorFlow ...", "a warning", "loaded"]


def test_import_weights_says_no_more(tmp_path):
    command = [sys.executable, "-m", "remixer_tf", "import_weights"]
    command += [f"--from={tmp_path}/none", f"--model_dir={tmp_path}/run"]
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    first, last = done.stderr.splitlines()
    assert first == "loading TensorFlow ..." and last.startswith("error: ")
