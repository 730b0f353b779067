"""A user's mistake is one line: the name, what was expected, what was received."""

import inspect
import os
import re

import gin
import keras
import pytest

from remixer_tf import configuration
from remixer_tf.__main__ import main
from remixer_tf.commands import run_command
from remixer_tf.configuration import checks, parts
from remixer_tf.configuration.reading import put_into_gin
from remixer_tf.configuration.values import Configuration
from remixer_tf.configured import train_run
from remixer_tf.models.build import build_model
from tests.settings import part_of, value_of
from tests.tiny_run import BYTES, SIZES, TINY

REMIXER = "--gin_file=models/remixer_tiny.gin"
MLM = "--gin_file=models/gmlp_tiny_mlm.gin"
IMAGES = "--gin_file=models/gmlp_vision_tiny.gin"


pytestmark = pytest.mark.usefixtures("clear_gin")


def read(arguments):
    options = configuration.parse_command_line(
        ["--model_dir=none", *arguments], "", configuration.add_common
    )
    return configuration.read(options.gin_file, options.gin_bindings)


def read_run(*arguments, **devices):
    options = configuration.parse_command_line(arguments, "", configuration.add_run)
    return configuration.read_run(options, **devices)


def message_of(function, *arguments, **options):
    """The line that a command would show for what `function` raises."""
    with pytest.raises(configuration.UserError) as error:
        function(*arguments, **options)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("bindings", "circle"),
    [
        (["A=%A", "Run.seed=%A"], ["%A"]),
        (["A=[%B]", "B={'b': %C}", "C=%A"], ["%A", "%B", "%C"]),
        (["EncoderDecoder.encoder=@EncoderDecoder()"], ["@EncoderDecoder"]),
        (
            ["TransformerStack.sublayers={'a': @b/TransformerStack}"],
            ["@b/TransformerStack"],
        ),
        (["train.optimizer=@train()"], ["@train"]),
        (
            ["train.optimizer=@a/text_scorer()", "text_scorer.step=@train()"],
            ["@a/train", "@a/text_scorer"],
        ),
    ],
)
def test_of_values_in_a_circle(bindings, circle):
    bindings = [f"--gin.{binding}" for binding in bindings]
    message = message_of(read, [*bindings, *["--gin.Run.seed=%A"] * ("%A" in circle)])
    before, after = "values refer to each other in a circle: ", ". Give one of them"
    assert message.startswith(before)
    names = message.removeprefix(before).partition(after)[0].split(" uses ")
    start = circle.index(names[0])
    assert names == [*circle[start:], *circle[:start], names[0]]


def test_what_a_scope_sets_otherwise_does_not_refer_to_itself():
    read(
        [
            "--gin.Batching.pack=@a/Batching()",
            "--gin.a/Batching.pack=True",
            "--gin.Batching.batch_size=8",
        ]
    )


LAYER = "encoder/TransformerStack.sublayers={'layer': "
ATTENTION = "GatedMLP.attention=@PositionalAttention"


@pytest.mark.parametrize(
    ("bindings", "used", "missing"),
    [
        (["text_to_text.decode_fn=@beam_search"], "@beam_search", "beam_search.rules"),
        (
            ["text_to_text.decode_fn=@a/beam_search", "b/beam_search.rules=@T5Rules()"],
            "@a/beam_search",
            "a/beam_search.rules",
        ),
        (
            ["SEARCH=@beam_search", "DecodedEvaluation.decode_fn=%SEARCH"],
            "@beam_search",
            "beam_search.rules",
        ),
        ([LAYER + "@FeedForward}"], "@FeedForward", "encoder/FeedForward.d_ff"),
        (
            [LAYER + "@FeedForward}", "decoder/FeedForward.d_ff=8"],
            "@FeedForward",
            "encoder/FeedForward.d_ff",
        ),
        (
            [LAYER + "@GatedMLP}", "GatedMLP.d_ff=8", ATTENTION],
            "@PositionalAttention",
            "encoder/PositionalAttention.d_kv",
        ),
        (
            [LAYER + "@MoE}", "MoE.d_ff=8", "MoE.num_experts=2"]
            + ["MoE.router=@HashRouter"],
            "@HashRouter",
            "encoder/HashRouter.vocab_size",
        ),
        (["train.optimizer=@bert_adamw"], "@bert_adamw", "bert_adamw.learning_rate"),
        (["Checkpointing.best=@Best()"], "@Best()", "Best.metric"),
    ],
)
def test_of_an_argument_without_a_value(bindings, used, missing):
    files = [REMIXER, "--gin_file=runs/mini_cogs.gin", *BYTES]
    message = message_of(read, [*files, *(f"--gin.{b}" for b in bindings)])
    assert message.startswith(f"{used} in ")
    assert f"needs a value for {missing}. Set it with" in message


@pytest.mark.parametrize(
    "bindings",
    [
        ["text_to_text.decode_fn=@a/beam_search", "beam_search.rules=@T5Rules()"],
        ["text_to_text.decode_fn=@sample"],
        [LAYER + "@FeedForward}", "encoder/FeedForward.d_ff=8"],
        [LAYER + "@GatedMLP}", "GatedMLP.d_ff=8", ATTENTION]
        + ["PositionalAttention.num_heads=1", "PositionalAttention.d_kv=8"],
        ["text_to_text.decode_fn=@beam_search", "beam_search.rules=@HuggingFaceRules()"]
        + ["HuggingFaceRules.early_stopping='never'"],
    ],
)
def test_of_nothing(bindings):
    files = [REMIXER, "--gin_file=runs/mini_cogs.gin", *BYTES]
    read([*files, *(f"--gin.{binding}" for binding in bindings)])


def test_what_a_part_is_given_by_name_needs_no_value():
    """The names are those of the guides, for datasets, stacks, layers and norms."""

    @gin.register(module="tests.by_name")
    def own_data(seed, steps_per_call, shard_info):
        return None

    @gin.register(module="tests.by_name")
    def own_stack(name, dtype, causal):
        return None

    @gin.register(module="tests.by_name")
    def own_layer(name, dtype, width):
        return None

    bindings = ["train.dataset=@own_data", "EncoderDecoder.encoder=@own_stack"]
    bindings += ["TransformerStack.norm=@own_layer", LAYER + "@own_layer}"]
    files = [REMIXER, "--gin_file=runs/mini_cogs.gin", *BYTES]
    arguments = [*files, *(f"--gin.{binding}" for binding in bindings)]
    read([*arguments, "--gin.own_layer.width=8"])
    assert "own_layer.width. Set it with" in message_of(read, arguments)


@pytest.mark.parametrize("closing", ["", "]" * 5000])
def test_of_a_file_that_is_nested_too_deep(tmp_path, monkeypatch, closing):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.gin").write_text(f"A = {'[' * 5000}{closing}")
    message = message_of(read, ["--gin_file=own.gin"])
    assert "too deep" in message or "too many nested" in message


@pytest.mark.parametrize("included", ["own.gin", "other.gin"])
def test_of_files_that_include_each_other(tmp_path, monkeypatch, included):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.gin").write_text(f"include '{included}'")
    (tmp_path / "other.gin").write_text("include 'own.gin'")
    message = message_of(read, ["--gin_file=own.gin"])
    assert message == "own.gin is included by a file that it includes."


def test_of_a_macro_in_a_file_that_leaves_another_unset(tmp_path, capfd):
    file = tmp_path / "own.gin"
    file.write_text("TRAIN_STEP = 10\n")
    message = message_of(
        read, [REMIXER, "--gin_file=runs/mini_cogs.gin", f"--gin_file={file}"]
    )
    assert "is required and not set" in message
    assert "TRAIN_STEP, a macro that nothing uses. Nearest: TRAIN_STEPS" in (
        capfd.readouterr().err
    )


def test_of_a_file_each_name_comes_once(monkeypatch):
    monkeypatch.chdir(os.path.dirname(configuration.gin_folder()))
    message = message_of(read, ["--gin_file=models/remixer_tin.gin"])
    assert "Nearest: models/remixer_tiny.gin, models/mixer_tiny.gin" in message


def test_of_a_key_that_no_dictionary_has():
    message = message_of(read, ["--gin.FEATURE_LENGTHS={[1]: 2}"])
    assert message.startswith("cannot read --gin.FEATURE_LENGTHS")


def test_of_a_class_by_its_whole_name():
    message = message_of(
        read, [REMIXER, "--gin.Run.model=remixer_tf.models.DecoderOnly"]
    )
    assert "DecoderOnly is the name of a class. Did you mean" in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["NUM_HEADS=0"], ["num_heads", "at least 1", "num_heads=0"]),
        (["NUM_HEADS='4'"], ["num_heads", "integer", "num_heads='4'"]),
        (["D_MODEL='128'"], ["d_model", "integer", "d_model='128'"]),
        (["D_MODEL=16.0"], ["d_model", "integer", "d_model=16.0"]),
        (["D_KV=0"], ["d_kv", "at least 1", "d_kv=0"]),
        (["D_FF=-5"], ["d_ff", "at least 1", "d_ff=-5"]),
        (["NUM_ENCODER_LAYERS=-1"], ["num_layers", "at least 1", "num_layers=-1"]),
        (["NUM_DECODER_LAYERS=0"], ["num_layers", "at least 1", "num_layers=0"]),
        (["VOCAB_SIZE='256'"], ["vocab_size", "integer", "vocab_size='256'"]),
        (["DROPOUT_RATE='0.1'"], ["dropout_rate", "number", "dropout_rate='0.1'"]),
        (["DROPOUT_RATE=1.5"], ["dropout_rate", "in [0, 1)", "rate=1.5"]),
        (["RelativePositionBias.num_buckets=0"], ["at least 4", "num_buckets=0"]),
        (["GatedFeedForward.activation='glue'"], ["'relu'", "activation='glue'"]),
        (["EncoderDecoder.decoder=3"], ["decoder", "@NAME", "decoder=3"]),
        (["encoder/TransformerStack.sublayers=3"], ["dictionary", "sublayers=3"]),
        (
            ["encoder/TransformerStack.sublayers={'a': 'SelfAttention'}"],
            ["sublayers['a']", "@NAME, without quotes", "'SelfAttention'"],
        ),
        ([REMIXER, "RemixerBlock.d_ff=-1"], ["at least 1", "d_ff=-1"]),
        ([REMIXER, "RemixerBlock.max_length='9'"], ["integer", "max_length='9'"]),
        ([MLM, "GatedMLP.d_ff=0"], ["at least 1", "d_ff=0"]),
        ([MLM, "MAX_LENGTH='9'"], ["integer", "max_length='9'"]),
        ([MLM, "MAX_LENGTH=None"], ["TransformerStack.max_length = %MAX_LENGTH"]),
        (["SelfAttention.causal=True"], ["encoder/layer_0", "= True contradicts"]),
        ([MLM, "EncoderOnly.num_token_types='2'"], ["num_token_types='2'"]),
        ([IMAGES, "ImageClassifier.patch_size=0"], ["at least 1", "patch_size=0"]),
        ([IMAGES, "ImageClassifier.num_classes='10'"], ["num_classes='10'"]),
    ],
)
def test_of_a_model(arguments, words):
    *files, binding = arguments
    files = files or ["--gin_file=models/t5_1_1_tiny.gin"]
    model = value_of(read([*files, f"--gin.{binding}"]), "Run.model")
    message = message_of(build_model, model, "float32")
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("BATCH_SIZE=-4", ["batch_size", "at least 1", "batch_size=-4"]),
        ("BATCH_SIZE='32'", ["integer", "batch_size='32'"]),
        ("FEATURE_LENGTHS=64", ["{'inputs': 64, 'targets': 64}", "feature_lengths=64"]),
        (
            "FEATURE_LENGTHS={'inputs': '64', 'targets': 16}",
            ["feature_lengths['inputs']", "integer", "'64'"],
        ),
        (
            "FEATURE_LENGTHS={'inputs': 64}",
            ["inputs, targets", "none for targets", "{'inputs': 64}"],
        ),
        (
            "DecodedEvaluation.feature_lengths={'targets': 16}",
            ["inputs, targets", "none for inputs", "{'targets': 16}"],
        ),
        ("DecodedEvaluation.batch_size=-8", ["at least 1", "batch_size=-8"]),
        ("DecodedEvaluation.max_length=True", ["max_length=True"]),
        ("LossEvaluation.max_examples=0", ["at least 1", "max_examples=0"]),
        ("LENGTH_BUCKETS=3", ["list of dictionaries", "length_buckets=3"]),
        ("VOCABULARY='bytes'", ["@byte_vocabulary()", "'bytes'"]),
        ("VOCABULARY=3", ["seqio.Vocabulary", "Received: 3"]),
        ("TASK=3", ["name of a registered one", "Received: 3"]),
        ("TRAIN_STEPS='100'", ["train_steps", "integer", "train_steps='100'"]),
        ("SEED='a'", ["seed", "integer", "seed='a'"]),
        ("Objective.micro_batches=0", ["at least 1", "micro_batches=0"]),
        ("Objective.clip_norm='1'", ["number", "clip_norm='1'"]),
        ("CrossEntropy.tokens_at_once=0", ["at least 1", "tokens_at_once=0"]),
        ("Checkpointing.keep='3'", ["integer", "keep='3'"]),
        ("Checkpointing.keep_period=True", ["integer", "keep_period=True"]),
        ("Objective.max_skipped_steps=-1", ["at least 0", "max_skipped_steps=-1"]),
        (
            "train.evaluations=[@LossEvaluation]",
            ["@LossEvaluation(), ...]", "brackets"],
        ),
        ("Checkpointing.best='dev'", ["@Best()", "best='dev'"]),
        ("Checkpointing.initial=@InitialCheckpoint()", ["path", "path=3"]),
    ],
)
def test_of_a_run(binding, words, tmp_path):
    path = ["--gin.InitialCheckpoint.path=3"] if "Initial" in binding else []
    evaluations = "[@DecodedEvaluation(), @LossEvaluation()]"
    path += [f"--gin.train.evaluations={evaluations}"] * ("Evaluation." in binding)
    settings = read([*BYTES, *SIZES, *TINY, *path, f"--gin.{binding}"])
    message = message_of(train_run, settings, str(tmp_path), dry_run=True)
    for word in words:
        assert word in message, message


def test_of_what_is_no_model(tmp_path):
    files = ["--gin_file=models/t5_1_1_tiny.gin", "--gin_file=runs/mini_cogs.gin"]
    bytes_ = ["--gin.VOCABULARY=@byte_vocabulary()", "--gin.VOCABULARY_FILE=None"]
    settings = read([*files, *bytes_, "--gin.Run.model=3"])
    message = message_of(train_run, settings, str(tmp_path))
    assert "@NAME" in message and "model=3" in message


@pytest.mark.parametrize(
    ("bindings", "name", "value"),
    [
        (["Batching.pack='yes'"], "Batching.pack", "'yes'"),
        (["Batching.shuffle=0"], "Batching.shuffle", "0"),
        (["EncoderDecoder.tied_logits='no'"], "EncoderDecoder.tied_logits", "'no'"),
        (
            ["encoder/TransformerStack.final_norm=None"],
            "encoder/TransformerStack.final_norm",
            "None",
        ),
        (["PACK=1", "Batching.pack=%PACK"], "Batching.pack", "1"),
    ],
)
def test_what_is_no_boolean(bindings, name, value):
    bindings = [f"--gin.{binding}" for binding in bindings]
    message = message_of(read, [*BYTES, *bindings])
    assert message == f"{name} must be True or False. Received: {name}={value}"


def test_what_is_neither_a_boolean_nor_none():
    """On the command line a bare word is a str."""
    flag = "--gin.JIT_COMPILE="
    for name, binding in (
        ("TensorFlowEngine.jit_compile", f"{flag}false"),
        ("SelfAttention.causal", "--gin.SelfAttention.causal=false"),
    ):
        message = f"{name} must be True, False or None. Received: {name}='false'"
        assert message_of(read, [*BYTES, binding]) == message
    for value in ("True", "False", "None"):
        read([*BYTES, flag + value])


def flags():
    """Yields (whole name, parameter) of what is True or False, None too perhaps.

    Its default says so, its annotation, or the class's or function's docstring.
    """
    for part, name in parts.register_configurables().items():
        if not name.startswith("remixer_tf."):
            continue
        classes = getattr(part, "__mro__", [part])
        text = "\n".join(filter(None, map(inspect.getdoc, classes)))
        for parameter, declared in parts.parameters(part).items():
            kind = str(declared.annotation)
            documented = rf"^ *([\w, ]+, )?{parameter}(, [\w, ]+)?: bool"
            if (
                isinstance(declared.default, bool)
                or re.search(documented, text, re.MULTILINE)
                or "bool" in kind
            ) and not re.search("str|Sequence", kind):
                yield name, parameter


def test_every_flag_refuses_other_values():
    found = [*flags()]
    assert len(found) > 100
    for name, parameter in found:
        read = Configuration({("", name): {parameter: "false"}})
        message = message_of(checks.check_values, read, True)
        assert message.endswith(f".{parameter}='false'"), (name, parameter)


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("VOCABULARY_FILE='none.model'", ["no vocabulary file 'none.model'"]),
        ("VOCABULARY_FILE=None", ["path", "path=None"]),
    ],
)
def test_of_a_vocabulary(binding, words, tmp_path):
    files = ["--gin_file=models/t5_1_1_tiny.gin", "--gin_file=runs/mini_cogs.gin"]
    settings = read([*files, f"--gin.{binding}"])
    message = message_of(train_run, settings, str(tmp_path))
    for word in words:
        assert word in message, message


def test_of_a_folder_of_data(tmp_path):
    binding = "--gin.cogs.directory='no_such_folder'"
    settings = read([*BYTES, "--gin.TASK='cogs'", binding])
    put_into_gin(settings)
    message = message_of(part_of(settings, "train_dataset"))
    assert "cogs.directory names a folder" in message and "no_such_folder" in message


DEVICES = {
    "JaxEngine.mesh_shape": ("jax", "'data:2'", "''"),
    "JaxEngine.distributed": ("jax", "{'num_processes': 2}", "None"),
    "TensorFlowEngine.strategy": ("tensorflow", "'mirrored'", "'single'"),
}


@pytest.mark.parametrize("name", DEVICES)
def test_of_devices_that_a_command_does_not_take(tmp_path, monkeypatch, name):
    """A run may have been trained on what may not be asked for: that is not read."""
    backend, several, one = DEVICES[name]
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    file = tmp_path / "operative_config.gin"
    file.write_text(f"{name} = {several}")
    run, binding = f"--model_dir={tmp_path}", f"--gin.{name}="
    asks = [[f"--gin_file={file}"], [binding + several]]
    for asked in asks:
        message = message_of(read_run, run, *asked)
        assert f"on one device, and the configuration has {name} = {several}" in message
        assert message_of(run_command, "pictures", [run, *asked]) == message
        read_run(run, *asked, binding + one)
    assert repr(value_of(read_run(run), name)) == one
    assert repr(value_of(read_run(run, devices="configured"), name)) == several


@pytest.mark.parametrize("command", ["infer", "score"])
@pytest.mark.parametrize(
    ("name", "several"),
    [
        ("JaxEngine.distributed", "{'num_processes': 2}"),
        ("TensorFlowEngine.strategy", "'multi_worker'"),
    ],
)
def test_of_processes_that_a_command_does_not_take(
    tmp_path, monkeypatch, command, name, several
):
    """Several devices of one process may be asked for."""
    monkeypatch.setattr(keras.backend, "backend", lambda: DEVICES[name][0])
    (tmp_path / "operative_config.gin").touch()
    run = f"--model_dir={tmp_path}"
    message = message_of(run_command, command, [run, f"--gin.{name}={several}"])
    assert "in one process" in message and f"{name} = {several}" in message
    for name in ("JaxEngine.mesh_shape", "TensorFlowEngine.strategy"):
        asked = f"--gin.{name}={DEVICES[name][1]}"
        settings = read_run(run, asked, devices="asked")
        assert repr(value_of(settings, name)) == DEVICES[name][1]


@pytest.mark.parametrize(
    ("part", "binding", "said"),
    [
        ("CutMix", "factor = (2, 3)", "The `factor` argument should be a number"),
        ("SGD", "momentum = 5", "`momentum` must be a float between [0, 1]."),
        ("SGD", "momentum = 'x'", ""),  # a TypeError in Python's words
    ],
)
def test_of_a_part_of_keras(part, binding, said):
    settings = configuration.read(
        [], [f"{part}.{binding}", f"train.optimizer = @{part}"], complete=False
    )
    message = message_of(part_of(settings, part))
    assert message.startswith(f"{part} (of Keras): {said}")


def test_a_command_shows_one_line(tmp_path, monkeypatch, capfd):
    arguments = [f"--model_dir={tmp_path}", *BYTES, *SIZES, *TINY, "--gin.BATCH_SIZE=0"]
    monkeypatch.setattr("sys.argv", ["remixer_tf", "train", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert capfd.readouterr().err == (
        "error: batch_size must be an integer of at least 1. Received: batch_size=0\n"
    )
