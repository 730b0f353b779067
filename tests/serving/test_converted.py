"""Files for LiteRT and ONNX Runtime: run there, and compared with TensorFlow."""

import dataclasses
import functools
import itertools
import json
import os
import sys
import types

import numpy as np
import pytest
import seqio
import tensorflow as tf

import remixer_tf as rt
from remixer_tf import configuration
from remixer_tf.commands import run_command
from remixer_tf.decoding import (
    AnswerLimits,
    HuggingFaceRules,
    T5Rules,
    beam_search,
    greedy_decode,
)
from remixer_tf.layers import (
    BlockTokenMLP,
    Context,
    DecodeState,
    LengthMixing,
    MoE,
    SwitchRouter,
)
from remixer_tf.serving import converted, litert, onnx_runtime
from remixer_tf.serving.token_graph import TokenGraph
from tests.configuration.test_mixers import FOR_ENCODERS, MIXERS
from tests.configuration.test_mixers import tiny as tiny_mixing
from tests.models.tiny import VOCAB_SIZE, tiny_decoder, tiny_model
from tests.settings import part_of, value_of

RUNTIMES = pytest.mark.parametrize("runtime", [litert, onnx_runtime])
LENGTH, D_MODEL = 6, 8
MIXING = {"max_length": LENGTH, "name": "mixing"}


def randomized(model):
    """The model or layer with large random weights, so that answers vary."""
    rng = np.random.default_rng(1)
    for weight in model.weights:
        if "float" in weight.dtype:
            noise = rng.normal(size=weight.shape) * 0.3
            weight.assign(weight.numpy() + noise)
    return model


def token_graph(model, **options):
    return TokenGraph(randomized(model), input_length=LENGTH, max_length=8, **options)


class OfTokens(tf.Module):
    """A graph of `f(x, mask)`, where x are vectors of ids and mask tells padding."""

    def __init__(self, layer, f, batch_size):
        super().__init__()
        self.weights = [weight.value for weight in randomized(layer).weights]
        self.table = tf.Variable(tf.random.normal([VOCAB_SIZE, D_MODEL], seed=0))
        spec = tf.TensorSpec([batch_size, LENGTH], tf.int32, name="inputs")

        @tf.function(input_signature=[spec], autograph=False)
        def function(inputs):
            mask = tf.cast(inputs > 0, tf.int32)
            return {"y": f(layer, tf.gather(self.table, inputs), mask)}

        self.function = function


def check(runtime, module, functions, folder, function=None):
    path = os.path.join(folder, runtime.FILE)
    runtime.convert(module, functions, path)
    examples = converted.example_tokens(LENGTH, VOCAB_SIZE)
    converted.compare(runtime, path, function or functions[0], examples)


def check_search(runtime, graph, folder):
    functions = [graph.function(rows) for rows in runtime.BATCHES]
    check(runtime, graph, functions, folder, graph.function())


def mix(layer, x, mask):
    return layer(x, context=Context(padding_mask=mask))


def step(layer, x, mask):
    cache = layer.init_cache(1, LENGTH, Context())
    for place in range(2):
        y, cache = layer.decode_step(
            x[:, place : place + 1],
            cache,
            Context(),
            DecodeState(tf.constant(place), tf.range(LENGTH)),
        )
    return y


def experts(layer, x, mask):
    return layer(x, context=Context(token_mask=mask))


def mixture():
    return MoE(num_experts=2, d_ff=12, router=SwitchRouter, name="experts")


@pytest.mark.parametrize(
    "rows, expected",
    [
        (1, [(1, 1)]),
        (3, [(1, 1)] * 3),
        (4, [(8, 4)]),
        (9, [(8, 8), (1, 1)]),
        (21, [(8, 8), (8, 8), (8, 5)]),
    ],
)
def test_rows_of_a_file_with_two_signatures(rows, expected):
    assert [*litert.calls(rows, [1, 8])] == expected


def test_ids_of_the_smallest_vocabularies():
    assert set(converted.example_tokens(4, 2).flat) == {0, 1}  # padding and EOS
    assert set(converted.example_tokens(4, 3).flat) == {0, 2}


# Forms of an equation that a converter gets wrong or lacks are no part of a layer.
@pytest.mark.slower
@pytest.mark.parametrize(
    "runtime, make, f",
    [
        (litert, lambda: LengthMixing(softmax=True, **MIXING), mix),
        (litert, lambda: BlockTokenMLP(8, window=4, gated=True, name="mlp"), step),
        (litert, mixture, experts),
        (onnx_runtime, mixture, experts),
    ],
    ids=["a_reciprocal", "two_sums_in_one", "choices_of_experts", "rounding_up"],
)
def test_layers(runtime, make, f, tmp_path):
    layer = make()
    layer.build((None, None, D_MODEL))
    module = OfTokens(layer, f, runtime.BATCHES[0])
    check(runtime, module, [module.function], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "runtime, make",
    [
        (litert, lambda: tiny_model("remixer", num_layers=1)),
        *(
            pytest.param(*searched, marks=pytest.mark.slower)
            for searched in (
                (onnx_runtime, lambda: tiny_model("remixer", num_layers=1)),
                (litert, lambda: tiny_decoder("smlp")),
                (onnx_runtime, lambda: tiny_decoder("bert")),  # exact gelu
                (litert, lambda: tiny_model("amlp", num_layers=1)),
                (litert, lambda: tiny_model("mixer", num_layers=1)),
            )
        ),
    ],
    ids=[
        *("litert-remixer", "onnx-remixer"),
        *("litert-smlp", "onnx-exact_gelu", "litert-amlp", "litert-mixer"),
    ],
)
def test_the_whole_search(runtime, make, tmp_path):
    graph = token_graph(make())
    check_search(runtime, graph, tmp_path)


@pytest.mark.slower
@pytest.mark.parametrize(
    "kind", [pytest.param("t5_1_1", marks=pytest.mark.slower), "remixer"]
)
@RUNTIMES
def test_beams(runtime, kind, tmp_path):
    rules = {"t5_1_1": HuggingFaceRules(), "remixer": T5Rules()}[kind]
    search = functools.partial(beam_search, rules=rules, beams=4, n_best=3)
    graph = token_graph(tiny_model(kind, num_layers=1), decode_fn=search)
    check_search(runtime, graph, tmp_path)


@pytest.mark.slower
@pytest.mark.usefixtures("clear_gin")
@pytest.mark.parametrize("mixer", sorted(x.stem for x in MIXERS.glob("*.gin")))
@RUNTIMES
def test_each_mixer(runtime, mixer, tmp_path):
    bindings = {
        "fnet": ["FourierMixing.method = 'matmul'"],
        "tnn": ["ToeplitzUnit.method = 'matmul'"],
    }.get(mixer, [])
    if mixer in FOR_ENCODERS:
        bindings = [*bindings, "DECODER_MIXER = @SelfAttention"]
    settings = tiny_mixing(mixer, "mixing_seq2seq", *bindings)
    model = value_of(settings, "Run.model")()
    model.build()
    check_search(runtime, token_graph(model), tmp_path)


ALLOWED = [[5], [5, 7], [9, 5, 6]]


def enumerated(model, questions):
    """Log-likelihoods of `ALLOWED` answers with EOS, float64 `[questions, answers]`.

    A softmax in NumPy of what the model computes for each whole row of tokens.
    """
    found = np.zeros([len(questions), len(ALLOWED)])
    for (row, question), (column, answer) in itertools.product(
        enumerate(questions), enumerate(ALLOWED)
    ):
        targets, batch = [*answer, 1], {"encoder_input_tokens": question[None]}
        if not hasattr(model, "encoder"):
            targets, batch = [*question[question > 0], *targets], {}
        batch["decoder_input_tokens"] = np.array([[0, *targets[:-1]]], "int32")
        logits = np.asarray(model(batch), "float64")[0]
        total = np.log(np.exp(logits).sum(axis=-1))
        for place in range(len(targets))[-len(answer) - 1 :]:
            found[row, column] += logits[place, targets[place]] - total[place]
    return found


def saved_model(graph, folder):
    """The function of a SavedModel, of arrays."""
    signature = {"predict_tokens": graph.function()}
    tf.saved_model.save(graph, str(folder), signature)
    function = tf.saved_model.load(str(folder)).signatures["predict_tokens"]

    def run(inputs):
        found = function(inputs=tf.constant(inputs))
        return {name: x.numpy() for name, x in found.items()}

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "runtime, kind",
    [
        (None, "t5_1_1"),
        (None, "language_model"),
        pytest.param(litert, "t5_1_1", marks=pytest.mark.slower),
        pytest.param(onnx_runtime, "t5_1_1", marks=pytest.mark.slower),
    ],
)
def test_beams_find_all_allowed_answers(runtime, kind, tmp_path):
    """Of LiteRT and ONNX in 8 bits too. Where there are fewer, the score is -inf."""
    search = functools.partial(
        beam_search,
        rules=HuggingFaceRules(length_penalty=0.0),
        beams=4,
        n_best=4,
        limits=AnswerLimits(allowed=ALLOWED),
    )
    is_decoder = kind == "language_model"
    model = tiny_decoder("bert") if is_decoder else tiny_model(kind, num_layers=1)
    graph = token_graph(model, decode_fn=search)
    questions = converted.example_tokens(LENGTH, VOCAB_SIZE)
    expected = enumerated(model, questions)
    order = np.argsort(-expected)
    expected = np.take_along_axis(expected, order, axis=1)
    texts = np.array([np.pad([*x, 1], (0, 7 - len(x))) for x in ALLOWED])
    if runtime is None:
        found = [saved_model(graph, tmp_path / "saved")(questions)]
    else:
        check_search(runtime, graph, tmp_path)
        file = str(tmp_path / runtime.FILE)
        found = [runtime.load(file)(inputs=questions)]
        runtime.quantize(file, graph.weights.matrices(), "int8")
        found.append(runtime.load(file)(inputs=questions))
    for answers, tolerance in zip(found, (1e-4, 0.1), strict=False):
        scores = answers["all_scores"]
        assert (scores[:, 3] == -np.inf).all()
        assert not answers["all_outputs"][:, 3].any()
        np.testing.assert_allclose(scores[:, :3], expected, rtol=tolerance)
    np.testing.assert_array_equal(found[0]["all_outputs"][:, :3], texts[order])


# All of them at once: each adds operations to the loop.
LIMITS = AnswerLimits(
    min_length=2,
    allowed=[[5, 5, 6], [5, 7, 5], [9, 5, 5, 5], [4, 9]],
    no_repeat_ngram_size=2,
    repetition_penalty=1.3,
)


@pytest.mark.slower
@pytest.mark.parametrize(
    "search",
    [greedy_decode, functools.partial(beam_search, rules=T5Rules(), beams=2)],
    ids=["greedy", "beams"],
)
@RUNTIMES
def test_limits_on_answers(runtime, search, tmp_path):
    search = functools.partial(search, limits=LIMITS)
    graph = token_graph(tiny_decoder("bert"), decode_fn=search)
    check_search(runtime, graph, tmp_path)


@pytest.mark.slow
@RUNTIMES
def test_an_operation_that_the_format_lacks_is_named(runtime, tmp_path):
    @tf.function(input_signature=[tf.TensorSpec([1, 2], tf.float32, name="inputs")])
    def function(inputs):
        return {"y": tf.math.igamma(inputs, inputs)}

    with pytest.raises(ValueError, match="cannot compute (tf.)?Igamma"):
        runtime.convert(tf.Module(), [function], str(tmp_path / runtime.FILE))


@pytest.mark.slower
@pytest.mark.usefixtures("clear_gin")
@pytest.mark.parametrize("tiny_run", ["words"], indirect=True)
def test_a_run(tiny_run, capsys):
    run_command("export", [f"--model_dir={tiny_run}", "--format=litert"])
    folder = tiny_run / "litert" / "1"
    words = os.listdir(tiny_run / "vocabularies")
    own = ["operative_config.gin", "vocabularies", "vocabularies.json"]
    assert sorted(os.listdir(folder)) == ["model.json", "model.tflite", *own]

    description = json.loads((folder / "model.json").read_text())
    length = description["inputs"]["inputs"]["shape"][1]
    assert length == description["max_input_length"] == 6
    outputs = description["outputs"]["outputs"]["shape"]
    assert outputs == [1, description["max_decode_length"]]
    vocabulary = description["vocabularies"]["targets"]
    assert vocabulary["file"] == f"vocabularies/{words[0]}"
    assert (description["pad_id"], description["eos_id"]) == (0, 1)
    assert description["inputs_end_with_eos"]
    assert description["signatures"] == {"predict_tokens": 1, "predict_tokens_8": 8}

    # A file in the run's place, whose policy is bfloat16, computes in float32.
    settings = configuration.read([str(tiny_run / "operative_config.gin")], [])
    run = dataclasses.replace(part_of(settings, "Run")(), dtype_policy="float32")
    model, _ = part_of(settings, "text_to_text")(run, str(tiny_run))
    ids = converted.example_tokens(length, vocabulary["size"])[-1:]
    expected = model.tokens.function(1)(tf.constant(ids))
    several = np.concatenate([np.zeros_like(ids).repeat(6, axis=0), ids])
    received = litert.load(str(folder / "model.tflite"))(inputs=several)
    np.testing.assert_array_equal(received["outputs"][6:], expected["outputs"])

    # The same texts, as whole lines and in Python.
    texts = ["A cat saw the dog .", "", "Emma liked a cake in the house"] * 3
    expected = model.answer_all([text.encode() for text in texts], 9)
    (tiny_run / "texts").write_text("\n".join(texts) + "\n")
    files = f"--input={tiny_run}/texts", f"--output={tiny_run}/answers"
    run_command("infer", [f"--model_dir={folder}", *files])
    answers = (tiny_run / "answers").read_text().splitlines()
    assert answers == [x.decode() for x in expected["outputs"]]
    assert "6 of 9 lines" in capsys.readouterr().err
    loaded = rt.load(folder)
    with pytest.warns(UserWarning, match="6 of 9 texts are longer than 6 tokens"):
        assert loaded.generate(texts) == answers
    text, score = loaded.generate(texts[0], scores=True)
    assert text == answers[0]
    assert score == pytest.approx(expected["scores"][0], abs=1e-3)
    for call, message in (
        (lambda: loaded.generate("a", beams=2), "holds one search, and takes no beams"),
        (lambda: loaded.generate("a", max_length=3), "takes no max_length"),
        (lambda: loaded.score("a", "b"), "is an export: generate"),
        (lambda: loaded.stream("a"), "is an export: generate"),
        (lambda: loaded.model, "is an export: generate"),
        (lambda: rt.load(folder, step=1), "is an export of one step"),
        (lambda: run_command("score", [f"--model_dir={folder}"]), "is an export: "),
        (
            lambda: run_command("infer", [f"--model_dir={folder}", "--step=1"]),
            "Leave --step",
        ),
    ):
        with pytest.raises(configuration.UserError, match=message):
            call()

    with pytest.raises(FileExistsError, match="litert/1 already"):
        run_command("export", [f"--model_dir={tiny_run}", "--format=litert"])


@pytest.mark.slow
@pytest.mark.usefixtures("clear_gin")
@pytest.mark.parametrize(
    "runtime, weights, tiny_run",
    [
        # T5.1.1
        pytest.param(litert, "int8", "bytes", marks=pytest.mark.slower),
        pytest.param(  # Remixer
            litert, "int8_weight_only", "words", marks=pytest.mark.slower
        ),
        pytest.param(onnx_runtime, "int8", "bytes", marks=pytest.mark.slower),
        (onnx_runtime, "int8", "words"),
    ],
    indirect=["tiny_run"],
)
def test_a_run_in_8_bits(runtime, weights, tiny_run, capsys):
    options = [f"--format={runtime.EXTRA}", f"--weights={weights}"]
    if options == ["--format=litert", "--weights=int8"]:
        options = ["--for=cpu"]
    run_command("export", [f"--model_dir={tiny_run}", *options])
    *_, size, path = capsys.readouterr().out.splitlines()
    folder = tiny_run / f"{runtime.EXTRA}_{weights}" / "1"
    assert path == str(folder)
    assert f"MB, weights in {weights}: " in size
    description = json.loads((folder / "model.json").read_text())
    assert description["weights"] == weights

    settings = configuration.read([str(tiny_run / "operative_config.gin")], [])
    run = dataclasses.replace(part_of(settings, "Run")(), dtype_policy="float32")
    model, _ = part_of(settings, "text_to_text")(run, str(tiny_run))
    ids = converted.example_tokens(description["max_input_length"], 40)[-1:]
    expected = model.tokens.function(1)(tf.constant(ids))
    received = runtime.load(str(folder / runtime.FILE))(inputs=ids)
    assert received["outputs"].shape == expected["outputs"].shape
    # After one step all tokens are nearly as likely, whichever are chosen. With 16
    # channels, rounding errors do not average out as in a larger model.
    np.testing.assert_allclose(received["scores"], expected["scores"], rtol=0.03)
    assert (received["scores"] != expected["scores"].numpy()).any()


@pytest.mark.slow
@pytest.mark.usefixtures("clear_gin")
@pytest.mark.parametrize("tiny_run", ["words"], indirect=True)
def test_sampling_is_refused(tiny_run):
    files = f"{tiny_run}/operative_config.gin", "decoding/sampling.gin"
    arguments = ["--format=onnx", *(f"--gin_file={file}" for file in files)]
    with pytest.raises(configuration.UserError, match="integers that sample draws"):
        run_command("export", [f"--model_dir={tiny_run}", *arguments])


def test_a_converter_that_fails_says_so_in_one_line(tmp_path, monkeypatch):
    def convert():
        raise RuntimeError("loc(x): operand #1 does not dominate this use\nnote: y")

    @tf.function(input_signature=[tf.TensorSpec([1, 2], tf.float32, name="inputs")])
    def function(inputs):
        return {"y": inputs}

    def made(*args, **options):
        return types.SimpleNamespace(convert=convert)

    monkeypatch.setattr(tf.lite.TFLiteConverter, "from_saved_model", made)
    with pytest.raises(configuration.UserError, match="fails: .* this use[.]$"):
        litert.convert(tf.Module(), [function], str(tmp_path / litert.FILE))


def fake_graph(num_bytes=4):
    """A `TokenGraph` that answers every question with itself."""

    @tf.function(input_signature=[tf.TensorSpec([None, LENGTH], tf.int32, "inputs")])
    def function(inputs):
        return {"outputs": inputs, "scores": tf.zeros_like(inputs[:, 0], "float32")}

    return types.SimpleNamespace(
        input_length=LENGTH,
        weights=types.SimpleNamespace(num_bytes=num_bytes, check_finite=lambda: None),
        function=lambda rows=None: function,
        cannot_decode=lambda: "",
        language_model=False,
    )


def test_a_model_without_steps_is_refused_before_the_conversion(tmp_path, monkeypatch):
    monkeypatch.setitem(converted.RUNTIMES, "fake", fake_runtime(same))
    graph = fake_graph()
    graph.cannot_decode = lambda: "It cannot decode step by step."
    with pytest.raises(ValueError, match="step by step. As it is, safetensors holds"):
        converted.export_tokens(graph, None, "fake", str(tmp_path / "1"))


def fake_runtime(function):
    """A runtime that computes `function`, whatever was converted."""

    def convert(module, traced, path):
        with open(path, "w") as file:
            file.write("converted")

    return types.SimpleNamespace(
        NAME="Fake",
        EXTRA="fake",
        FILE="model.fake",
        CALL={},
        BATCHES=(None,),
        MODULES=(),
        convert=convert,
        load=lambda path: function,
    )


def same(inputs):
    return {"outputs": inputs, "scores": np.zeros(len(inputs), "float32")}


def other_last_token(inputs):
    answers = same(inputs.copy())
    answers["outputs"][inputs[:, -1] > 0, -1] += 1
    return answers


def other_score(inputs):
    return same(inputs) | {"scores": np.full(len(inputs), 0.01, "float32")}


def one_at_a_time(inputs):
    return same(inputs[:1])


def fails(inputs):
    raise RuntimeError("no kernel")


@pytest.mark.parametrize(
    "function, message",
    [
        (other_last_token, r"otherwise than TensorFlow: outputs\[0, 5\] is"),
        (other_score, r"scores\[0\] is 0.00999"),
        (one_at_a_time, "otherwise than TensorFlow: outputs"),
        (fails, "cannot run what its converter wrote: no kernel"),
    ],
)
def test_a_file_that_answers_otherwise_is_not_kept(
    function, message, tmp_path, monkeypatch
):
    feature = seqio.Feature(seqio.ByteVocabulary())
    task = types.SimpleNamespace(output_features={"targets": feature})
    folder = str(tmp_path / "fake" / "1")

    monkeypatch.setitem(converted.RUNTIMES, "fake", fake_runtime(function))
    with pytest.raises(ValueError, match=message) as error:
        converted.export_tokens(fake_graph(), task, "fake", folder)
    assert isinstance(error.value, configuration.UserError)
    assert not (tmp_path / "fake").exists()

    monkeypatch.setitem(converted.RUNTIMES, "fake", fake_runtime(same))
    converted.export_tokens(fake_graph(), task, "fake", folder)
    files = ["model.fake", "model.json", "vocabularies.json"]
    assert sorted(os.listdir(folder)) == files
    with pytest.raises(ValueError, match="the weights take 3.0 GB"):
        converted.export_tokens(fake_graph(3e9), task, "fake", folder + "0")


def test_a_transform_that_a_format_lacks_has_another_way(tmp_path, monkeypatch):
    def convert(module, traced, path):
        raise configuration.UserError("LiteRT cannot compute tf.IRFFT.")

    runtime = fake_runtime(same)
    runtime.convert = convert
    monkeypatch.setitem(converted.RUNTIMES, "fake", runtime)
    feature = seqio.Feature(seqio.ByteVocabulary())
    task = types.SimpleNamespace(output_features={"targets": feature})
    graph = fake_graph()
    for names, way in (["Own.method"], ", or 'matmul' as Own.method."), ([], "."):
        graph.transforms = lambda names=names: names
        with pytest.raises(ValueError, match=f"tf.IRFFT.*SavedModel{way}$"):
            converted.export_tokens(graph, task, "fake", str(tmp_path / "1"))


def test_layers_that_ask_for_a_transform():
    for mixer, expected in ("tnn", ["ToeplitzUnit.method"]), ("trimlp", []):
        model = value_of(tiny_mixing(mixer, "mixing_lm"), "Run.model")()
        model.build()
        assert token_graph(model).transforms() == expected


@RUNTIMES
def test_a_missing_extra(runtime, monkeypatch):
    modules = ["ai_edge_litert", "ai_edge_litert.interpreter", "onnxruntime"]
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"'remixer_tf.{runtime.EXTRA}.'") as error:
        converted.check_runtime(runtime.EXTRA)
    assert isinstance(error.value, configuration.UserError)


def test_examples_have_every_amount_of_padding_that_matters():
    lengths = (converted.example_tokens(24, 100) > 0).sum(axis=1)
    assert lengths.tolist() == [1, 2, 12, 23, 24]
    assert converted.example_tokens(1, 100).shape == (1, 1)
