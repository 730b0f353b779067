"""gin: what it may configure, where files are found, one message for each error."""

import os
import threading

import gin
import jax
import keras
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import runtime_version

from remixer_tf import __version__, commands, configuration
from remixer_tf.commands import errors_in_one_line, run_command
from remixer_tf.models import TransformerStack
from tests.settings import macro_of, part_of, value_of

MODEL = "models/t5_1_1_tiny.gin"
RUN = "runs/mini_cogs.gin"
WORDS = "--gin.VOCABULARY_FILE='words.model'"


pytestmark = pytest.mark.usefixtures("clear_gin")


def parse(*arguments):
    options = configuration.parse_command_line(
        ["--model_dir=run", *arguments], "A test.", configuration.add_common
    )
    given = options.gin_file, options.gin_bindings, options.gin_search_paths
    return configuration.read(*given)


def error_of(*arguments):
    with pytest.raises(configuration.UserError) as error:
        parse(*arguments)
    return str(error.value)


def test_command_line():
    options = configuration.parse_command_line(
        [
            "--model_dir=run",
            "--gin_file=a.gin,b.gin",
            "--gin.SEED=3",
            "--gin_file=c.gin",
            "--gin_search_paths=x,y",
            "--gin.encoder/SelfAttention.num_heads=2",
            "--step=7",
        ],
        "A test.",
        configuration.add_run,
    )
    assert options.model_dir == "run"
    assert options.gin_file == ["a.gin", "b.gin", "c.gin"]
    assert options.gin_search_paths == ["x", "y"]
    assert options.gin_bindings == [
        "SEED = 3",
        "encoder/SelfAttention.num_heads = 2",
    ]
    assert options.step == 7


def test_help_is_readable(capsys):
    with pytest.raises(SystemExit) as exit_:
        run_command("train", ["--help"])
    assert exit_.value.code == 0
    output = capsys.readouterr().out
    for word in ("Trains a model", "--gin_file FILE", "--gin.NAME=VALUE", "=cogs"):
        assert word in output


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("infer", [], "required: --model_dir. --help lists all options."),
        ("infer", ["--model_dir=a", "--batch_size=0"], "at least 1. Received: 0."),
        (
            "export",
            ["--model_dir=a", "--batch_sizes=a"],
            "expected M,N. Received",
        ),
        ("infer", ["--model_dir=a", "--step=last"], "expected a number or best. Rec"),
        ("export", ["--model_dir=a", "--format=onnx", "--max_rows=3"], "a SavedModel"),
        ("export", ["--model_dir=a", "--wait_ms=0"], "give batch_sizes too"),
        ("compare", ["a", "--format=html"], "invalid choice: 'html' (choose from"),
        ("compare", ["a", "--formt=csv"], "'--formt=csv'. Nearest: --format,"),
    ],
)
def test_a_wrong_option_is_one_line(command, arguments, words):
    with pytest.raises(configuration.UserError) as error:
        run_command(command, arguments)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("model", ["t5_1_1_tiny", "remixer_tiny"])
@pytest.mark.parametrize("run", ["mini_cogs", "cogs"])
def test_runs_go_with_models(model, run):
    files = [f"--gin_file=models/{model}.gin", f"--gin_file=runs/{run}.gin"]
    settings = parse(*files, WORDS)
    assert macro_of(settings, "TASK") == run
    for name in ("Run.model", "train.optimizer", "train.dataset", "Run.task"):
        assert value_of(settings, name) is not None


def test_the_last_value_counts():
    twice = "--gin.SEED=1", "--gin.SEED=2"
    settings = parse(f"--gin_file={MODEL},{RUN}", WORDS, *twice)
    assert macro_of(settings, "SEED") == 2


def test_the_size_of_a_models_vocabulary_is_the_vocabularys():
    """Rounded up; 259 ids are those of bytes."""
    run = [f"--gin_file={MODEL},{RUN}", "--gin.VOCABULARY=@byte_vocabulary()"]
    for more, size in ([], 384), (["--gin.VOCAB_SIZE=259"], 259):
        settings = parse(*run, "--gin.VOCABULARY_FILE=None", *more)
        assert value_of(settings, "EncoderDecoder.vocab_size") == size
    settings = parse(f"--gin_file={MODEL}")
    assert value_of(settings, "EncoderDecoder.vocab_size") == 32128


@pytest.mark.parametrize("value", [None, True])
def test_one_name_compiles_training_evaluation_and_answers(value):
    files = ["models/t5_1_1_tiny.gin", "runs/mini_cogs.gin"]
    bindings = ["VOCABULARY_FILE = ''", f"JIT_COMPILE = {value}"]
    settings = configuration.read(files, bindings)
    for name in ("TensorFlowEngine", "text_to_text"):
        assert value_of(settings, f"{name}.jit_compile", "unset") is value


def test_search_path(tmp_path, monkeypatch):
    (tmp_path / "there" / "runs").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    mine = tmp_path / "there" / "runs" / "mine.gin"
    mine.write_text("include 'runs/mini_cogs.gin'\nSEED = 5\nVOCABULARY_FILE = 'a'\n")
    monkeypatch.chdir(tmp_path / "here")
    for paths in (["--gin_file=runs/mine.gin", "--gin_search_paths=../there"],):
        assert macro_of(parse(f"--gin_file={MODEL}", *paths), "SEED") == 5
    settings = parse(f"--gin_file={MODEL}", f"--gin_file={mine}")
    assert macro_of(settings, "SEED") == 5
    assert "no gin file 'runs/mine.gin'" in error_of("--gin_file=runs/mine.gin")


def test_folders_of_the_same_names_here(tmp_path, monkeypatch):
    """A folder may be called runs, and one on Python's path is no package for that."""
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run = ["--gin_file=runs/mini_cogs.gin", "--gin.VOCABULARY_FILE='a'"]
    parse(f"--gin_file={MODEL}", *run)
    assert "no gin file 'runs/mine.gin'" in error_of("--gin_file=runs/mine.gin")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "mine.gin").write_text("SEED = 5\n")
    monkeypatch.chdir(tmp_path / "runs")
    assert macro_of(parse("--gin_file=package/mine.gin"), "SEED") == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gin_file=runs/mini_cog.gin"], ["runs/mini_cog.gin", "runs/mini_cogs.gin"]),
        (["--gin.trian.seed=1"], ["'trian'", "Nearest: train"]),
        (["--gin.train.optimizer=@Adafacto"], ["'Adafacto'", "Nearest: Adafactor"]),
        (["--gin.Run.model=@EncodrDecoder()"], ["'EncodrDecoder'", "EncoderDecoder"]),
        (["--gin.Schedule.train_step=1"], ["'train_step'", "Nearest: train_steps"]),
        (["--gin.EncoderDecoder.d_modl=1"], ["'d_modl'", "Nearest: d_model"]),
        (["--gin.AdamW.wieght_decay=1"], ["'wieght_decay'", "Nearest: weight_decay"]),
        (["--gin.DecodedEvaluation.max_exmples=1"], ["'max_exmples'", "max_examples"]),
        (["--gin.LengthMixing.toeplitz=True"], ["toeplitz", "no @LengthMixing"]),
        (["--gin.BATCHSIZE=1"], ["BATCHSIZE", "nothing uses", "Nearest: BATCH_SIZE"]),
        (["--gin.Run.seed=%SEDE"], ["macro SEDE", "Nearest: SEED", "--gin.SEDE="]),
        (
            ["--gin.VOCABULARY_FILE=%gin.REQUIRED"],
            ["VOCABULARY_FILE is required", "`remixer_tf train_vocabulary` makes one"],
        ),
        (["--gin.SEED=%gin.REQUIRED"], ["SEED is required", "--gin.SEED=VALUE"]),
        (
            ["--gin.Run.seed=%gin.REQUIRED"],
            ["Run.seed is required", "--gin.Run.seed=VALUE"],
        ),
        (["--gin.SEED=[1"], ["cannot read --gin.SEED=[1"]),
        (["--gin.SEED="], ["cannot read --gin.SEED="]),
        (["--gin.SEED"], ["--gin.SEED has no value"]),
        (["--gin_fil=a"], ["'--gin_fil=a'", "Nearest: --gin_file"]),
        (["--gin_param=SEED = 1"], ["Did you mean --gin.SEED=1"]),
        (["--gin_bindings='SEED=1'"], ["Did you mean --gin.SEED=1"]),
        (["--gin_param", "SEED = 1"], ["Did you mean --gin.NAME=VALUE"]),
        (["--gin.train_steps=9"], ["nothing uses", "Nearest: TRAIN_STEPS"]),
        (
            ["--gin.Adafactor.learning_rate=WarmupConstant"],
            ["Did you mean --gin.Adafactor.learning_rate=@WarmupConstant()"],
        ),
        (["--gin.train.optimizer=Adafactor"], ["--gin.train.optimizer=@Adafactor"]),
        (
            ["--gin.Adafactor.learning_rate=@WarmupConstant"],
            ["brackets", "@WarmupConstant()"],
        ),
        (["--gin.Objective.loss_fn=@CrossEntropy"], ["brackets", "@CrossEntropy()"]),
        (["--gin.train_dataset.batching=@Batching"], ["brackets", "@Batching()"]),
        (
            ["--gin_file=runs/pretrain_c4.gin", "--gin.LEARNING_RATE=1e-4"],
            [
                "--gin.LEARNING_RATE sets what nothing reads",
                "WarmupConstant.learning_rate, and the configuration has no "
                "@WarmupConstant",
                "Adafactor.learning_rate = @TruncatedRsqrt()",
            ],
        ),
        (
            ["--gin.WarmupLinearDecay.learning_rate=1.0"],
            ["nothing reads", "no @WarmupLinearDecay"],
        ),
    ],
)
def test_one_message_for_each_error(arguments, words):
    message = error_of(f"--gin_file={MODEL},{RUN}", WORDS, *arguments)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_what_text_alone_shows_is_told_before_anything_is_imported(
    tmp_path, monkeypatch, caplog
):
    def slow():
        raise AssertionError

    monkeypatch.setattr(configuration.parts, "register_configurables", slow)
    (tmp_path / "syntax.gin").write_text(f"include '{MODEL}'\nSEED == 1\n")
    for argument, word in [
        (f"--gin_file={tmp_path}/syntax.gin", "line 2"),
        ("--gin_file=runs/mini_cog.gin", "no gin file"),
        ("--gin.BATCHSIZE=1", "nothing uses"),
        ("--gin.SEED=[1", "cannot read"),
    ]:
        assert word in error_of(f"--gin_file={MODEL},{RUN}", WORDS, argument)
    assert not caplog.records


def test_a_model_file_after_a_run_file(tmp_path):
    """It would set VOCAB_SIZE back to its own."""
    mine = tmp_path / "mine.gin"
    mine.write_text(f"include '{RUN}'\ninclude '{MODEL}'\n")
    for files in (f"{RUN},{MODEL}", str(mine)):
        message = error_of(f"--gin_file={files}", WORDS)
        assert "t5_1_1.gin says what the model is" in message
        assert "VOCAB_SIZE" in message and "first" in message


def test_a_file_of_both_may_name_them_in_any_order(tmp_path):
    """As what training wrote does."""
    (tmp_path / "a.gin").write_text(
        "train.dataset = @train_dataset\nRun.model = @EncoderDecoder\n"
    )
    parse(f"--gin_file={tmp_path}/a.gin,{MODEL}", "--gin_file=runs/imported.gin", WORDS)


def test_a_users_file_may_set_what_nothing_reads_and_is_told(tmp_path, capsys):
    text = "LERNING_RATE = 1.0\nWINDOW = 9\n"
    for name in ("mine.gin", "operative_config.gin"):  # A run's has all.
        (tmp_path / name).write_text(text)
    parse(f"--gin_file={MODEL},{RUN},{tmp_path}/mine.gin", WORDS)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all(line.startswith("warning: ") for line in lines)
    assert f"{tmp_path}/mine.gin sets LERNING_RATE" in lines[0]
    assert "Nearest: LEARNING_RATE" in lines[0]
    parse(f"--gin_file={MODEL},{RUN},{tmp_path}/operative_config.gin", WORDS)
    assert not capsys.readouterr().err


def test_a_file_of_imports_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "constant_parts.py").write_text("import gin\ngin.constant('c', 3)\n")
    (tmp_path / "imports.gin").write_text("import constant_parts\n")
    settings = parse(f"--gin_file={tmp_path}/imports.gin", "--gin.Run.seed=%c")
    assert value_of(settings, "Run.seed") == 3
    assert "import constant_parts\n" in settings.text()


def test_a_required_value_may_be_set_by_its_long_name(tmp_path):
    (tmp_path / "a.gin").write_text("Run.seed = %gin.REQUIRED\n")
    by_long_name = "--gin.remixer_tf.run.Run.seed=3"
    settings = parse(f"--gin_file={tmp_path}/a.gin", by_long_name)
    assert value_of(settings, "Run.seed") == 3
    bindings = ["Run.seed=1", "remixer_tf.run.Run.seed=2", "Run.seed=4"]
    settings = parse(*(f"--gin.{binding}" for binding in bindings))
    assert value_of(settings, "Run.seed") == 4


def test_a_name_of_two_things():
    for module in ("first", "second"):
        gin.external_configurable(lambda size=1: size, "twin", module=module)
    message = error_of("--gin.twin.size=2")
    assert "'twin'" in message and "first.twin" in message and "whole name" in message


def test_errors_in_files_name_file_and_line(tmp_path):
    for name, text, words in [
        ("name", "\ntrian.seed = 1\n", ["'trian'", "line 2"]),
        ("syntax", "SEED = 1\nRun.seed == 2\n", ["line 2", "Run.seed == 2"]),
        ("value", "TASK = cogs\n", ["line 1", "Python literal"]),
        ("bracket", "SEED = [1\n", ["not closed"]),
        ("include", "include 'models/none.gin'\n", ["no gin file 'models/none.gin'"]),
    ]:
        path = tmp_path / f"{name}.gin"
        path.write_text(text)
        message = error_of(f"--gin_file={path}")
        for word in words:
            assert word in message, (name, message)
        if "line" in words[-1]:
            assert str(path) in message
    assert error_of(f"--gin_file={tmp_path}")  # a folder


def test_train_without_files_reads_the_runs_own(tmp_path, monkeypatch):
    trained = []
    train = "remixer_tf.configured.train_run"
    monkeypatch.setattr(train, lambda *args, **_: trained.append(args))
    written = parse(f"--gin_file={MODEL},{RUN}", WORDS).text()
    (tmp_path / "operative_config.gin").write_text(written)
    run_command("train", [f"--model_dir={tmp_path}", "--gin.TRAIN_STEPS=70"])
    ((settings, model_dir),) = trained
    assert model_dir == str(tmp_path)
    assert value_of(settings, "Schedule.train_steps") == 70
    assert value_of(settings, "Run.task") == "mini_cogs"
    with pytest.raises(configuration.UserError, match="--gin_file=runs/mini_cogs.gin"):
        run_command("train", [f"--model_dir={tmp_path}/new", "--gin.TRAIN_STEPS=70"])


def test_required_values_of_a_run_are_named():
    message = error_of(f"--gin_file={MODEL}", "--gin_file=runs/train.gin")
    assert "TASK is required" in message


def test_call_names_what_is_missing():
    needs = "Schedule needs a value for 'train_steps'"
    with pytest.raises(configuration.UserError, match=needs):
        part_of(parse(f"--gin_file={MODEL}"), "Schedule")()
    with pytest.raises(configuration.UserError, match="Run needs a value for 'model'"):
        part_of(parse(), "Run")()


def test_a_bug_is_not_explained_away():
    settings = parse(
        f"--gin_file={MODEL}",
        "--gin.EncoderDecoder.encoder=@num_tokens",
        "--gin.num_tokens.image_size=2",
        "--gin.num_tokens.patch_size=1",
    )
    with pytest.raises(TypeError, match="unexpected keyword") as error:
        model = part_of(settings, "EncoderDecoder")
        model(decoder=len, vocab_size=1, d_model=1)
    assert not isinstance(error.value, configuration.UserError)


def test_the_written_configuration_can_be_read_again():
    settings = parse(f"--gin_file={MODEL},{RUN}", WORDS, "--gin.evaluate.step=3")
    part_of(settings, "WarmupCosineDecay")()
    gin.clear_config()
    gin.parse_config(settings.text())  # by gin's own reader
    assert gin.query_parameter("evaluate.step") == 3
    assert gin.query_parameter("WarmupCosineDecay.end_learning_rate") == 0.0
    assert gin.query_parameter("D_MODEL/gin.macro.value") == 128


def test_what_was_given_is_written_alone_and_in_order(tmp_path):
    """A loaded run puts it back after another run's."""
    settings = parse(f"--gin_file={MODEL},{RUN}", WORDS)
    part_of(settings, "WarmupCosineDecay")()
    assert "end_learning_rate" in settings.text()
    text = settings.text(defaults=False)
    assert "end_learning_rate" not in text
    first, *lines = text.splitlines()
    assert first == f"# Written by remixer_tf {__version__}."
    assert lines == [line for line in lines if not line or " = " in line]
    names = [line.partition(" ")[0] for line in lines if line]
    assert names[:2] == ["BATCH_SIZE", "CACHE_DIR"]
    (tmp_path / "all.gin").write_text(text)
    settings = parse(f"--gin_file={tmp_path}/all.gin")
    assert settings.text(defaults=False) == text
    sublayers = settings.bound(TransformerStack, "decoder").arguments()["sublayers"]
    assert list(sublayers) == ["self_attention", "cross_attention", "feed_forward"]


def test_the_written_configuration_keeps_the_order_of_sublayers(tmp_path):
    settings = parse(f"--gin_file={MODEL},{RUN}", WORDS)
    order = ["self_attention", "cross_attention", "feed_forward"]
    for _ in range(2):
        stack = settings.bound(TransformerStack, "decoder")
        assert list(stack.arguments()["sublayers"]) == order
        stack(name="decoder")
        (tmp_path / "all.gin").write_text(settings.text())
        settings = parse(f"--gin_file={tmp_path}/all.gin")


def test_a_users_error_is_one_line_and_a_bug_is_not(capsys):
    with pytest.raises(SystemExit) as exit_, errors_in_one_line():
        part_of(parse(), "Run")(model=None, task="no_such_task").get_task()
    assert exit_.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: No task or mixture is registered")
    assert "In call to configurable" not in message

    with pytest.raises(SystemExit), errors_in_one_line():
        raise configuration.UserError("a stranger's \x1b[31m\r\x9b, in\ntwo lines")
    message = capsys.readouterr().err
    assert message == "error: a stranger's \\x1b[31m \\x9b, in two lines\n"

    def check(number):
        raise configuration.UserError("Row 3 has no answer.")

    rows = tf.data.Dataset.range(1).map(lambda n: tf.py_function(check, [n], n.dtype))
    with pytest.raises(SystemExit), errors_in_one_line():
        list(rows)
    assert capsys.readouterr().err == "error: Row 3 has no answer.\n"

    with pytest.raises(TypeError), errors_in_one_line():
        os.path.join(1)
    with pytest.raises(ValueError), errors_in_one_line():
        int("one")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt("Ctrl-C: saved step 3."), 130, ["Ctrl-C: saved step 3."]),
        (KeyboardInterrupt(), 130, ["Ctrl-C"]),
        (
            tf.errors.ResourceExhaustedError(
                None, None, "Graph:\n{{node a}} OOM when allocating shape[9] [Op:Fill]"
            ),
            2,
            ["error: out of memory: OOM when allocating shape[9]. ", "BATCH_SIZE"],
        ),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory, 9 bytes."),
            2,
            ["out of memory: RESOURCE_EXHAUSTED: Out of memory, 9 bytes. Take "],
        ),
        (MemoryError("Unable to allocate 7 TiB"), 2, ["Unable to allocate 7 TiB. "]),
        (OSError(28, "No space left on device"), 2, ["left on device. Make room"]),
        (OSError(30, "Read-only file system", "/x"), 2, ["file system: '/x'. Make"]),
        (
            FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"),
            2,
            ["found in ['/tmp']. Set TMPDIR to a folder that can be written."],
        ),
        (
            tf.errors.ResourceExhaustedError(None, None, "a; No space left on device"),
            2,
            ["error: a; No space left on device. Make room"],
        ),
        (
            runtime_version.VersionError("Detected runtime 6.33.1, gencode 7.36.1."),
            2,
            ["protobuf is too old: Detected", "python -m pip install -U protobuf"],
        ),
        (  # of the worker that was number 0, and then of another
            tf.errors.UnavailableError(
                None, None, "a\nfrom remote target /job:worker/replica:0/task:0 while"
            ),
            2,
            ["error: another worker has ended: from remote target"],
        ),
        (  # as TensorFlow 2.21 says after `kill -9` of one of two workers
            tf.errors.UnavailableError(
                None,
                None,
                "Graph execution error:\n\nCollective ops is aborted by: Error "
                "reported from /job:worker/task:1: The following tasks are unhealthy "
                "(stopped sending heartbeats):\n/job:worker/task:1\n\t [[{{node x}}]]",
            ),
            2,
            ["error: another worker has ended: ", "task:1", "Start all of them again"],
        ),
        (  # as JAX 0.10.2 says on CPUs then
            ValueError(
                "UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/"
                "pair.cc:547] Connection closed by peer [127.0.0.1]:35716"
            ),
            2,
            ["error: another worker has ended: ", "Gloo", "Start all of them again"],
        ),
    ],
)
def test_one_line_for_an_interrupt_and_for_want_of_memory_disk_or_a_worker(
    capsys, error, code, words
):
    with pytest.raises(SystemExit) as exit_, errors_in_one_line():
        raise error
    assert exit_.value.code == code
    (line,) = capsys.readouterr().err.splitlines()
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("UNKNOWN: Gloo all-reduce failed: x"), 2),
        (configuration.UserError("mine"), 2),
        (KeyboardInterrupt(), 130),
        (AttributeError("a bug"), 1),
    ],
)
def test_one_of_several_processes_of_jax_ends_soon(monkeypatch, error, code):
    """At once if another has died, which JAX would wait for."""
    codes, ended = [], threading.Event()
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), ended.set()))
    monkeypatch.setattr(commands, "_WAIT", 0.01)
    monkeypatch.setattr(commands, "_of_own_code", lambda error: None)
    with pytest.raises((SystemExit, AttributeError)), errors_in_one_line():
        raise error
    assert ended.wait(30) and codes == [code]


def test_keras_and_gin_leave_the_message():
    class Fails(keras.layers.Layer):
        def call(self, x):
            raise configuration.UserError("One line.")

    def call():
        Fails()(np.zeros(1))

    for function in (call, gin.external_configurable(call, "calls_keras")):
        with pytest.raises(configuration.UserError) as error:
            function()
        assert str(error.value) == "One line."


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("cogs", "'cogs'"),
        ("words.model", "'words.model'"),
        ("/tmp/runs/x.model", "'/tmp/runs/x.model'"),
        ("gs://bucket/words.model", "'gs://bucket/words.model'"),
        ("data:4,model:2", "'data:4,model:2'"),
        ("'cogs'", "'cogs'"),
        ('"cogs"', '"cogs"'),
        ("None", "None"),
        ("1e-3", "1e-3"),
        ("-1", "-1"),
        ("%SEED", "%SEED"),
        ("@a/Adafactor", "@a/Adafactor"),
        ("@byte_vocabulary()", "@byte_vocabulary()"),
        ("[1, %SEED]", "[1, %SEED]"),
        ("{'inputs': 4}", "{'inputs': 4}"),
    ],
)
def test_a_bare_word_is_a_string(given, value):
    options = configuration.parse_command_line(
        [f"--gin.NAME={given}"],
        "",
        lambda parser: configuration.add_common(parser, run="optional"),
    )
    assert options.gin_bindings == [f"NAME = {value}"]


def test_hyperparameters_are_the_numbers_and_strings():
    text = "A = 1\nb/train.c = 'x'\nd = @train()\ne = %A\nf = {\n  'g': 2}\nh = None\n"
    assert configuration.hyperparameters(text) == {"A": 1, "b/train.c": "x"}


# As gin text, and as Python reads it. Python's own `inf` is no literal.
LITERALS = {
    "1e400": float("inf"),
    "-1e400": float("-inf"),
    "[1e400, (-1e400,), {'a': (1e999, 'inf')}]": [
        float("inf"),
        (float("-inf"),),
        {"a": (float("inf"), "inf")},
    ],
    "{-1e400: [], 1.0: ()}": {float("-inf"): [], 1.0: ()},
    "{(1, ('a', 2)): 3}": {(1, ("a", 2)): 3},
    str(10**400): 10**400,
    "-0.0": 0.0,
    "[2j, -1e400j]": [2j, complex(-0.0, float("-inf"))],
    "b'a\\xff'": b"a\xff",
    "'1e400, %a and @b()'": "1e400, %a and @b()",
    "[None, True, 'a' 'b']": [None, True, "ab"],
}


@pytest.mark.parametrize(("text", "value"), LITERALS.items(), ids=range(len(LITERALS)))
def test_every_literal_is_read_and_written_and_read_again(text, value, tmp_path):
    @gin.register(module="tests.literals")
    def holds_a_literal(value=None):
        return value

    name = "tests.literals.holds_a_literal.value"
    settings = parse(f"--gin.{name}={text}")
    for _ in range(2):
        found = value_of(settings, name)
        assert found == value and type(found) is type(value)
        (tmp_path / "all.gin").write_text(settings.text())
        settings = parse(f"--gin_file={tmp_path}/all.gin")
    gin.config._REGISTRY.pop(name.rpartition(".")[0])


@pytest.mark.parametrize(
    "text", ["{'a': 1, 'b': 2, 'a': 3}", "[{1: {'x': 2}, True: 4}]", "{1: 1, 1.0: 2}"]
)
def test_a_key_that_stands_twice_is_an_error(tmp_path, text):
    (tmp_path / "a.gin").write_text(f"\n\nSIZES = {text}\n")
    for argument in (f"--gin_file={tmp_path}/a.gin", f"--gin.SIZES={text}"):
        assert "twice in a dictionary" in error_of(argument)
    assert f"{tmp_path}/a.gin: line 3" in error_of(f"--gin_file={tmp_path}/a.gin")


@pytest.mark.parametrize("value", ["{%K: 1, 'x': 2}", "[{'y': {%K: 1, %L: 2}}]"])
def test_macros_that_are_equal_keys_are_an_error(tmp_path, value):
    file = tmp_path / "a.gin"
    file.write_text(f"K = 'x'\nL = 'x'\nTransformerStack.positions = {value}\n")
    message = error_of(f"--gin_file={file}")
    assert "TransformerStack.positions gives 'x' twice in a dictionary" in message


@pytest.mark.parametrize(
    "value, message",
    [
        ("{%K: 1}", "TransformerStack.positions has a list or a dictionary as a key"),
        ("{(1, %L): 1, (1, 'x'): 2}", "positions gives (1, 'x') twice in a dict"),
        ("{(1, %LOST): 1}", "the macro LOST is used but not set"),
        ("{%OWN: 1}", "values refer to each other in a circle: %OWN uses %OWN"),
    ],
)
def test_macros_in_keys_are_resolved(tmp_path, value, message):
    file = tmp_path / "a.gin"
    macros = "K = ['x']\nL = 'x'\n" + "OWN = {%OWN: 1}\n" * ("OWN" in value)
    file.write_text(f"{macros}TransformerStack.positions = {value}\n")
    assert message in error_of(f"--gin_file={file}")
