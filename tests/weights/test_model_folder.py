"""`export --format=safetensors`: any model to a folder and back, bit for bit."""

import os
import re
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file

import remixer_tf as rt
from remixer_tf import configuration
from remixer_tf.commands import run_command
from remixer_tf.configuration import Configuration
from remixer_tf.models.build import build_model
from remixer_tf.named_models import preset_names
from remixer_tf.weights import model_folder
from remixer_tf.weights.source import check_model, model_variables, take
from tests.settings import value_of

pytestmark = pytest.mark.usefixtures("clear_gin")
QUESTIONS = ["A cat", "the teacher slept", "café"]
PRESETS = [name for name in preset_names() if "tiny" in name]
QUICK = ("remixer_tiny", "gmlp_vision_tiny", "hash_lm_tiny", "amlp_tiny_mlm")


def _factory(preset, **sizes):
    sizes = {"D_MODEL": 16, "D_FF": 32} | sizes
    if "vision" not in preset:
        sizes = {"VOCAB_SIZE": 64, "MAX_LENGTH": 32} | sizes
    bindings = [f"{name} = {value}" for name, value in sizes.items()]
    settings = configuration.read([f"models/{preset}.gin"], bindings, complete=False)
    return value_of(settings, "Run.model")


@pytest.mark.parametrize(
    "preset",
    [
        pytest.param(name, marks=[pytest.mark.slower] * (name not in QUICK))
        for name in PRESETS
    ],
)
def test_every_architecture_goes_there_and_back(tmp_path, preset):
    folder, factory = str(tmp_path / "model"), _factory(preset)
    model = build_model(factory, "float32")
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(random.normal(size=variable.shape))
    model_folder.write_model_folder(model, folder, Configuration({}), {}, "")
    source = model_folder.read_model_folder(folder)
    check_model(factory, source)
    back = build_model(factory, "float32")
    take(back, source)
    there, here = map(model_variables, (model, back))
    assert there.keys() == here.keys() and len(there) > 5
    for path, variable in there.items():
        np.testing.assert_array_equal(here[path].numpy(), variable.numpy(), path)


def test_what_enable_lora_added_is_merged(tmp_path):
    folder, factory = str(tmp_path / "model"), _factory("remixer_tiny")
    model = build_model(factory, "float32")
    random = np.random.default_rng(0)
    parts = [x for x in model._flatten_layers() if x is not model]
    layers = [x for x in parts if hasattr(x, "enable_lora")]
    for layer in layers:
        layer.enable_lora(2, lora_alpha=6)
    for variable in model.trainable_variables:
        # Large logits of attention would make much of rounding.
        variable.assign(random.normal(size=variable.shape, scale=0.3))
    tokens = random.integers(1, 64, (2, 32)).astype("int32")
    batch = {"encoder_input_tokens": tokens, "decoder_input_tokens": tokens}
    model_folder.write_model_folder(model, folder, Configuration({}), {}, "")
    back = build_model(factory, "float32")
    take(back, model_folder.read_model_folder(folder))
    assert len(layers) > 5 and "Embedding" in {type(x).__name__ for x in layers}
    expected, received = (np.array(x(batch)) for x in (model, back))
    np.testing.assert_allclose(received, expected, atol=1e-4 * expected.std())


on_bytes = pytest.mark.parametrize("tiny_run", ["bytes"], indirect=True)


@pytest.fixture
def exported(tiny_run, tmp_path):
    """A run's folder, with a result of an evaluation, and its exported copy."""
    folder = tmp_path / "run"
    subprocess.run(["cp", "-r", tiny_run, folder], check=True)
    run_command("export", [f"--model_dir={folder}", "--format=safetensors"])
    (step,) = os.listdir(folder / "safetensors")
    return str(folder), str(folder / "safetensors" / step)


@pytest.mark.slow
def test_a_run_is_published_and_loaded(exported, tmp_path):
    folder, published = exported
    copies = ["vocabularies"] if os.path.isdir(f"{folder}/vocabularies") else []
    assert sorted(os.listdir(published)) == [
        "MANIFEST.sha256",
        "README.md",
        "model.safetensors",
        "operative_config.gin",
        *copies,
        "vocabularies.json",
    ]
    check = ["sha256sum", "--strict", "-c", "MANIFEST.sha256"]
    subprocess.run(check, cwd=published, check=True, stdout=subprocess.DEVNULL)
    card = open(f"{published}/README.md").read()
    original = rt.load(folder)
    parameters = f"{original.model.count_params():,} parameters"
    assert parameters in card and "task mini_cogs" in card and "--gin_file=" in card
    moved = tmp_path / "moved"
    os.rename(published, moved)
    loaded = rt.load(moved)
    answers = loaded.generate(QUESTIONS, scores=True)
    assert answers == original.generate(QUESTIONS, scores=True)
    (tmp_path / "in.txt").write_text("\n".join(QUESTIONS) + "\n")
    files = [f"--input={tmp_path}/in.txt", f"--output={tmp_path}/out.txt"]
    run_command("infer", [f"--model_dir={moved}", *files])
    lines = (tmp_path / "out.txt").read_text(errors="replace").split("\n")[:-1]
    assert [line.replace(r"\n", "\n") for line in lines] == [x for x, _ in answers]


def test_the_card_counts_what_the_file_holds(bytes_run, tmp_path):
    """enable_lora adds variables, and what it adds is merged into the kernels."""
    run = rt.load(bytes_run)
    run.model.enable_lora(2)
    folder = run.export(tmp_path / "merged", format="safetensors")
    sizes = [x.size for x in load_file(f"{folder}/model.safetensors").values()]
    assert f", {sum(sizes):,} parameters" in open(f"{folder}/README.md").read()


@pytest.mark.slow
@on_bytes
def test_training_goes_on_from_it(exported, tmp_path, capsys):
    _, published = exported
    run_command(
        "import_weights", [f"--from={published}", f"--model_dir={tmp_path}/new"]
    )
    assert "model of its operative_config.gin" in capsys.readouterr().out
    new, old = rt.load(f"{tmp_path}/new"), rt.load(published)
    values = zip(new.model.variables, old.model.variables, strict=True)
    for variable, other in values:
        np.testing.assert_array_equal(variable.numpy(), other.numpy(), other.path)


@pytest.mark.slow
@on_bytes
def test_other_files_than_those_exported(exported):
    _, published = exported

    def error():
        with pytest.raises(configuration.UserError) as error:
            rt.load(published).generate("A cat")
        assert "\n" not in str(error.value)
        return str(error.value)

    def edit(name, change):
        with open(f"{published}/{name}", "rb") as file:
            before = file.read()
        with open(f"{published}/{name}", "wb") as file:
            file.write(change(before))
        message = error()
        with open(f"{published}/{name}", "wb") as file:
            file.write(before)
        return message

    changed = "is not the file that was exported: its SHA-256 differs"
    for name in ("model.safetensors", "operative_config.gin", "README.md"):
        message = edit(name, lambda x: x[:-2] + bytes([x[-2] ^ 1]) + x[-1:])
        assert changed in message and name in message
    manifest = model_folder.MANIFEST
    assert "is damaged" in edit(manifest, lambda x: x[:30])
    message = edit(manifest, lambda x: re.sub(rb".*\.gin\n", b"", x))
    assert "does not list operative_config.gin" in message
    message = edit(manifest, lambda x: x + b"0" * 64 + b"  ../../passwd\n")
    assert "lacks ../../passwd" in message
    os.remove(f"{published}/README.md")
    assert "lacks README.md" in error()
    os.remove(f"{published}/{manifest}")
    assert f"There is no {published}/{manifest}" in error()


def test_another_model_is_found_before_memory_is_taken(tmp_path):
    folder = str(tmp_path / "model")
    model = build_model(_factory("remixer_tiny"), "float32")
    model_folder.write_model_folder(model, folder, Configuration({}), {}, "")
    huge = _factory("remixer_tiny", VOCAB_SIZE=10**10)
    with pytest.raises(ValueError, match="of another shape: .*token_embedding"):
        check_model(huge, model_folder.read_model_folder(folder))
