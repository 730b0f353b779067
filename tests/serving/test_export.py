"""`python -m remixer_tf export`, and its SavedModel where nothing of ours is."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from remixer_tf import configuration
from remixer_tf.commands import run_command
from remixer_tf.run import Run
from remixer_tf.serving import saved_model
from tests.serving.test_text_to_text import QUESTIONS
from tests.settings import part_of

# Reads questions as hexadecimal numbers, and answers in batches of 0, 1, 7 and all.
FRESH = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def imported():
    return {name for name in sys.modules if name.startswith("keras")}

import tensorflow as tf
import tensorflow_text

keras = imported()  # TensorFlow imports it, the SavedModel needs none of it
sys.meta_path.insert(0, Blocked())
model = tf.saved_model.load(sys.argv[2])
answer = model.signatures["serving_default"]
questions = [bytes.fromhex(text) for text in sys.argv[3:]]
results = []
for size in (0, 1, 7, len(questions)):
    answers = answer(inputs=tf.constant(questions[:size], tf.string))
    outputs = [text.decode() for text in answers["outputs"].numpy()]
    results.append([outputs, answers["scores"].numpy().tolist()])
blocked = {*sys.argv[1].split(",")} - {"keras"}
assert not blocked & {name.split(".")[0] for name in sys.modules}
assert imported() == keras
print(json.dumps(results))
"""


# All that this package needs, but for TensorFlow and tensorflow-text.
BLOCKED = "remixer_tf,keras,seqio,t5,gin,sentencepiece,tensorflow_datasets"

# Each export traces a whole search.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clear_gin")]


on_bytes = pytest.mark.parametrize("tiny_run", ["bytes"], indirect=True)


def restored(folder, settings=None):
    """The `TextToText` of a run, by its own settings unless others are given."""
    file = os.path.join(folder, "operative_config.gin")
    settings = settings or configuration.read([file], [])
    return part_of(settings, "text_to_text")(part_of(settings, "Run")(), str(folder))


@pytest.fixture
def exported(tiny_run, capsys):
    path = tiny_run / "export" / "1"
    if not path.exists():
        run_command("export", [f"--model_dir={tiny_run}"])
        *table, size, folder = capsys.readouterr().out.splitlines()
        signatures = [line.split()[0] for line in table if not line.startswith(" ")]
        assert signatures[1:] == [
            "serving_default",
            "generate",
            "score",
            "predict_tokens",
        ]
        assert size.endswith("MB, weights in float32") and folder == str(path)
    return path


def test_a_fresh_process_answers_what_infer_answers(exported, tiny_run, tmp_path):
    questions = [*QUESTIONS, b"the dog saw a cake in the house .", b"Emma \xc0 slept"]
    process = subprocess.run(
        [
            *(sys.executable, "-c", FRESH, BLOCKED, exported),
            *(text.hex() for text in questions),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout.splitlines()[-1])

    files = tmp_path / "questions.txt", tmp_path / "answers.txt"
    files[0].write_bytes(b"\n".join(questions))
    arguments = [f"--input={files[0]}", f"--output={files[1]}", "--scores"]
    run_command("infer", [f"--model_dir={tiny_run}", *arguments])
    rows = [line.split("\t") for line in files[1].read_text().split("\n")[:-1]]
    assert len(rows) == len(questions)
    for size, (outputs, scores) in zip((0, 1, 7, 8), results, strict=True):
        escaped = [x.replace("\n", "\\n").replace("\r", "\\r") for x in outputs]
        assert escaped == ["\t".join(row[:-1]) for row in rows[:size]]
        expected = [float(row[-1]) for row in rows[:size]]
        np.testing.assert_allclose(scores, expected, atol=1e-3)


def test_signature_and_assets(exported, tiny_run):
    saved = saved_model_pb2.SavedModel.FromString(
        (exported / "saved_model.pb").read_bytes()
    )
    signature = saved.meta_graphs[0].signature_def["serving_default"]
    tensors = {**signature.inputs, **signature.outputs}
    assert {name: tf.as_dtype(x.dtype).name for name, x in tensors.items()} == {
        "inputs": "string",
        "outputs": "string",
        "scores": "float32",
        "trimmed": "bool",
    }
    for tensor in signature.outputs.values():
        assert [axis.size for axis in tensor.tensor_shape.dim] == [-1]
    # Texts of another rank come in, and are refused in one line.
    assert signature.inputs["inputs"].tensor_shape.unknown_rank

    assets = sorted(os.listdir(exported / "assets"))
    copies = tiny_run / "vocabularies"
    vocabulary = os.listdir(copies) if copies.exists() else []
    assert assets == sorted(["operative_config.gin", *vocabulary])
    for name in vocabulary:
        content = (exported / "assets" / name).read_bytes()
        assert content == (copies / name).read_bytes()
        assert saved.SerializeToString().count(content[:500]) == 1
    file = str(exported / "assets" / "operative_config.gin")
    settings = configuration.read([file], [])
    settings.set_paths([str(tiny_run)])  # It names the copies in the run.
    _, step = restored(tiny_run, settings)
    assert step == 1


@on_bytes
def test_an_export_appears_whole_or_not_at_all(exported, tiny_run, monkeypatch):
    content = sorted(os.listdir(exported))
    with monkeypatch.context() as early:
        early.setattr(Run, "restore", None)  # Nothing is built before.
        with pytest.raises(FileExistsError, match="export/1 already") as error:
            run_command("export", [f"--model_dir={tiny_run}"])
    assert isinstance(error.value, configuration.UserError)
    assert sorted(os.listdir(exported)) == content

    def save(model, path, signatures):
        assert os.path.isdir(path)
        raise tf.errors.ResourceExhaustedError(None, None, "No space left")

    monkeypatch.setattr(tf.saved_model, "save", save)
    model, _ = restored(tiny_run)
    with pytest.raises(OSError, match="Cannot write .*export/2: No space") as error:
        saved_model.export(model, str(tiny_run / "export" / "2"), "")
    assert isinstance(error.value, configuration.UserError)
    assert os.listdir(tiny_run / "export") == ["1"]


@on_bytes
def test_weights_of_another_type_stand_beside(exported, tiny_run, monkeypatch):
    def stop(model, path, *args):
        raise NotImplementedError(path)

    monkeypatch.setattr(saved_model, "export", stop)
    with pytest.raises(NotImplementedError) as error:
        run_command("export", [f"--model_dir={tiny_run}", "--weights=bfloat16"])
    assert error.value.args == (str(tiny_run / "export_bfloat16" / "1"),)


@on_bytes
def test_errors(tiny_run, tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint of step 5"):
        run_command("export", [f"--model_dir={tiny_run}", "--step=5"])
    model, _ = restored(tiny_run)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Cannot write .*file/export/1") as error:
        saved_model.export(model, str(tmp_path / "file" / "export" / "1"), "")
    assert isinstance(error.value, configuration.UserError)
