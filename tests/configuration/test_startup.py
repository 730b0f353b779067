"""Messages of a command before TensorFlow is imported."""

import json
import os
import subprocess
import sys

import keras
import pytest

import remixer_tf as rt
from remixer_tf.errors import UserError
from remixer_tf.startup import check_keras, set_up_keras

RUN = """
import sys
from remixer_tf import configuration
configuration.load_tensorflow()
configuration.load_tensorflow()
assert "tensorflow" in sys.modules
print("loaded", file=sys.stderr)
"""


def errors_of(code, *arguments, **environment):
    environment = {k: v for k, v in {**os.environ, **environment}.items() if v}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.slow
def test_one_line_and_none_of_tensorflows():
    lines = errors_of(RUN, TF_CPP_MIN_LOG_LEVEL="")
    assert lines == ["loading TensorFlow ...", "loaded"]


@pytest.mark.slow
def test_what_is_told_while_it_loads_is_kept(tmp_path):
    """A module that TensorFlow imports warns."""
    (tmp_path / "tensorflow.py").write_text(
        "import os\nos.write(2, b'a warning\\n')\n"
        "class config:\n  list_physical_devices = staticmethod(lambda: [])\n"
    )
    lines = errors_of(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{RUN}")
    assert lines == ["loading TensorFlow ...", "a warning", "loaded"]


@pytest.mark.slower
def test_import_weights_says_no_more(tmp_path):
    command = [sys.executable, "-m", "remixer_tf", "import_weights"]
    command += [f"--from={tmp_path}/none", f"--model_dir={tmp_path}/run"]
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    first, last = done.stderr.splitlines()
    assert first == "loading TensorFlow ..." and last.startswith("error: ")


MISTAKES = """
import sys
from remixer_tf.commands import run_command
from remixer_tf.errors import UserError
sys.modules["tensorflow"] = sys.modules["keras"] = None  # An import fails.
for command in sys.argv[2:]:
    for folder in ("none", sys.argv[1]):
        try:
            run_command(command, [f"--model_dir={folder}"])
        except UserError as error:
            print(error, file=sys.stderr)
"""


def test_mistakes_come_before_tensorflow_is_loaded(tmp_path):
    """That there is no run, or no engine, takes a moment to say."""
    (tmp_path / "operative_config.gin").touch()
    commands = ["eval", "infer", "score", "export", "pictures"]
    lines = errors_of(MISTAKES, tmp_path, *commands, KERAS_BACKEND="torch")
    assert len(lines) == 10
    for of_folder, of_backend in zip(lines[::2], lines[1::2], strict=True):
        assert of_folder.startswith("there is no none. Set --model_dir to the folder")
        assert of_backend.startswith("KERAS_BACKEND must be tensorflow or jax.")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "torch"}, "keras.json must be tensorflow or jax.*KERAS_BACKEND="),
        ({"backend": None}, "keras.json must be tensorflow or jax. Received: None"),
        ({"floatx": "bfloat16"}, "keras.json holds what Keras does not take"),
        ({"epsilon": 1}, "keras.json holds what Keras does not take"),
        ({"image_data_format": ["channels_last"]}, "what Keras does not take"),
        ([], "what Keras does not take"),
        ({"backend": "jax", "floatx": "float16", "epsilon": 1e-3}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_file_of_keras(tmp_path, monkeypatch, settings, message):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND")
    text = "no JSON" if settings is None else json.dumps(settings)
    (tmp_path / "keras.json").write_text(text)
    if message is None:
        check_keras()
        return
    for call in (check_keras, lambda: rt.load):
        with pytest.raises(UserError, match=message):
            call()
    if "backend" in settings:
        monkeypatch.setenv("KERAS_BACKEND", "jax")
        check_keras()


def test_keras_has_its_defaults_whatever_its_file_says(tmp_path, monkeypatch):
    """A value that the program sets itself stays."""
    backend = keras.backend.backend()
    of_file = {"floatx": "float16", "epsilon": 0.1}
    of_file["image_data_format"] = "channels_first"
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "keras.json").write_text(json.dumps(of_file))

    def settings():
        return {name: getattr(keras.config, name)() for name in of_file}

    def set_keras(**values):
        for name, value in values.items():
            getattr(keras.config, f"set_{name}")(value)

    before = settings()
    try:
        set_keras(**of_file)
        set_up_keras.cache_clear()
        set_up_keras()
        defaults = {"floatx": "float32", "epsilon": 1e-7}
        defaults["image_data_format"] = "channels_last"
        assert settings() == defaults
        set_keras(floatx="float16")  # later
        set_up_keras()
        assert settings() == defaults | {"floatx": "float16"}
        set_keras(floatx="float64", epsilon=0.1)  # before
        set_up_keras.cache_clear()
        set_up_keras()
        assert settings() == defaults | {"floatx": "float64"}
    finally:
        set_keras(**before)
    assert keras.backend.backend() == backend
