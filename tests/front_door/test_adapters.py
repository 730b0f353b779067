"""Adapters: trained by gin, saved alone, loaded onto a run, merged in exports."""

import json
import os

import gin
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

import remixer_tf as rt
from remixer_tf.commands import run_command
from remixer_tf.models.adapters import has_lora
from remixer_tf.weights.adapters import load_adapters, save_adapters
from remixer_tf.weights.safetensors_files import read_file, write_safetensors
from tests.tiny_run import train_run

pytestmark = pytest.mark.usefixtures("clear_gin")
PAIR = "A cat", "the dog"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that trained adapters. Its checkpoint of step 0 has the other weights."""
    folder = str(tmp_path_factory.mktemp("adapters"))
    train_run(
        folder,
        "bytes",
        "--gin_file=runs/lora.gin",
        "--gin.Lora.rank=2",
        "--gin.Lora.alpha=6",
        "--gin.Lora.dropout_rate=0.1",
        "--gin.LEARNING_RATE=0.1",
        "--gin.TRAIN_STEPS=3",
        "--gin.train.evaluations=[]",
    )
    gin.clear_config()
    return folder


def start(folder, **options):
    """The run as it was before its adapters."""
    return rt.load(folder, 0, bindings=["Run.adapters = None"], **options)


@pytest.fixture
def lora(folder):
    return rt.load(folder)


@pytest.mark.slower
def test_adapters_go_from_run_to_run(folder, lora, tmp_path, capsys):
    base, score = start(folder), lora.score(*PAIR)
    assert abs(score - base.score(*PAIR)) > 1e-4
    run_command("export", [f"--model_dir={folder}", "--format=adapters"])
    alone = capsys.readouterr().out.split()[-1]
    arrays = load_file(f"{alone}/adapters.safetensors")
    assert {x.rpartition("/")[2] for x in arrays} == {"lora_kernel_a", "lora_kernel_b"}
    assert os.path.getsize(f"{alone}/adapters.safetensors") < 10_000
    again = start(folder, adapters=alone)
    assert again.score(*PAIR) == score
    assert all("lora" in v.name for v in again.model.trainable_variables)
    again.export(str(tmp_path / "again"), "adapters")
    for name, value in load_file(tmp_path / "again" / "adapters.safetensors").items():
        np.testing.assert_array_equal(value, arrays[name])


@pytest.mark.slow
def test_adapters_that_do_not_fit(folder, lora, tmp_path):
    save_adapters(lora.model, str(tmp_path / "a"))
    base = start(folder)
    with pytest.raises(ValueError, match="already, so it .*: of a run .* step 0, wi"):
        load_adapters(lora.model, str(tmp_path / "a"))
    with pytest.raises(FileNotFoundError, match="format=adapters` writes it"):
        load_adapters(base.model, str(tmp_path))
    with pytest.raises(ValueError, match="Expected: a folder with adapters"):
        load_adapters(base.model, str(tmp_path / "a" / "adapters.safetensors"))
    with pytest.raises(ValueError, match="has adapters alone. Load the run"):
        rt.load(tmp_path / "a")
    with pytest.raises(ValueError, match="adapters must be the path of"):
        rt.load(folder, adapters=3)
    (tmp_path / "table.csv").write_text("mine")
    with pytest.raises(FileExistsError, match="remove it if it is an old export"):
        lora.export(tmp_path / "table.csv", "adapters")
    with pytest.raises(ValueError, match="has no adapters to save"):
        base.export(str(tmp_path / "none"), "adapters")
    base.model.encoder.final_norm.scale.assign(np.zeros(16))
    with pytest.raises(ValueError, match="trained on other weights"):
        load_adapters(base.model, str(tmp_path / "a"))
    file = tmp_path / "a" / "adapters.safetensors"
    whole, (arrays, about) = file.read_bytes(), read_file(file)
    name, (alpha, rate) = next(iter(json.loads(about["layers"]).items()))
    broken = [{"no_layer": [alpha, rate]}, {name: [alpha]}, {name: ["x", rate]}, [name]]
    base = start(folder)
    for layers in ["{", *map(json.dumps, broken)]:
        write_safetensors(str(file), arrays, about | {"layers": layers})
        with pytest.raises(ValueError, match="adapters.safetensors is damaged: "):
            load_adapters(base.model, str(tmp_path / "a"))
    b = f"{name}/lora_kernel_b"
    other = arrays | {b: np.zeros([2, 3], "float32")}
    write_safetensors(str(file), other, about)
    with pytest.raises(ValueError, match=rf"is damaged: it has {b} \(2, 3\)"):
        load_adapters(start(folder).model, str(tmp_path / "a"))
    file.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match="is not a safetensors file"):
        load_adapters(base.model, str(tmp_path / "a"))


@pytest.mark.slow
def test_an_export_is_merged(lora, tmp_path):
    score = lora.score(*PAIR)
    lora.export(str(tmp_path / "whole"), "safetensors")
    arrays = load_file(tmp_path / "whole" / "model.safetensors")
    assert not any("lora" in name for name in arrays)
    whole = rt.load(str(tmp_path / "whole"))
    assert not has_lora(whole.model)
    assert whole.score(*PAIR) == pytest.approx(score, abs=1e-4)
    assert has_lora(lora.model)  # which trains on


@pytest.mark.slower
@pytest.mark.parametrize(
    "source", [pytest.param("folder", marks=pytest.mark.slower), "memory"]
)
def test_a_saved_model_is_merged(folder, lora, tmp_path, source):
    if source == "memory":
        lora = start(folder)
        lora.model.enable_lora(2)
        for variable in lora.model.trainable_variables:
            variable.assign(np.full(variable.shape, 0.1))
    lora.export(str(tmp_path / "export"))
    names = [
        name
        for name, _ in tf.train.list_variables(f"{tmp_path}/export/variables/variables")
    ]
    assert names and not any("lora" in name for name in names)
    serve = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    answer = serve(inputs=tf.constant(["A cat"]))["outputs"].numpy()[0]
    assert answer.decode("utf-8", "replace") == lora.generate("A cat")


@pytest.mark.slower
def test_a_fit_trains_adapters_if_bound(folder, tmp_path):
    base = start(folder)
    table = tmp_path / "train.tsv"
    table.write_text("inputs\ttargets\n" + "A cat\tthe dog\n" * 4)
    bindings = ["Run.adapters = @Lora()", "Lora.rank = 1", "Schedule.log_period = 1"]
    options = {"steps": 1, "batch_size": 2, "bindings": bindings}
    new = base.fit(str(table), str(tmp_path / "new"), **options)
    assert has_lora(new.model) and new.step == 1
    newer = new.fit(str(table), str(tmp_path / "newer"), **options)
    assert has_lora(newer.model)


@pytest.mark.slower
@pytest.mark.parametrize("runtime", ["litert", "onnx"])
def test_other_runtimes_have_adapters_as_they_are_in_memory(folder, runtime, tmp_path):
    from remixer_tf.serving import litert, onnx_runtime

    runs = {}
    for policy in ("float32", "mixed_bfloat16"):
        run = rt.load(folder, bindings=[f"Run.dtype_policy = '{policy}'"])
        rng = np.random.default_rng(1)
        for variable in run.model.trainable_variables:
            variable.assign(rng.normal(size=variable.shape))
        runs[policy] = run
    runs["mixed_bfloat16"].export(str(tmp_path / "export"), runtime)
    module = {"litert": litert, "onnx": onnx_runtime}[runtime]
    graph = module.load(str(tmp_path / "export" / module.FILE))
    shape = json.loads((tmp_path / "export" / "model.json").read_text())
    length = shape["inputs"]["inputs"]["shape"][1]
    ids = rng.integers(3, 200, [1, length]).astype("int32")
    ids[:, -1] = 1
    batch = {"encoder_input_tokens": tf.constant(ids)}
    model, length = runs["float32"].model, shape["max_length"]
    expected = rt.decoding.greedy_decode(model, batch, length)
    received = graph(inputs=ids)
    np.testing.assert_array_equal(received["outputs"], expected.tokens)
    np.testing.assert_allclose(received["scores"], expected.scores, rtol=1e-4)
    plain = rt.decoding.greedy_decode(start(folder).model, batch, length)
    assert not np.allclose(plain.scores, expected.scores, rtol=1e-3)
