"""`python -m remixer_tf costs`: counts, tables, errors."""

import csv
import io
import math
import re

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

from remixer_tf import configuration
from remixer_tf.analysis.costs import count, count_activations
from remixer_tf.analysis.matching import Wanted, find_value
from remixer_tf.commands import run_command
from remixer_tf.engines.tensorflow.flops import matmul_flops, op_flops
from remixer_tf.errors import UserError
from remixer_tf.layers import Context, LengthMixing, MoE, SwitchRouter
from remixer_tf.models.build import build_model
from remixer_tf.optimizers import Adafactor
from tests.documentation import ROOT
from tests.settings import part_of, value_of
from tests.tiny_run import SIZES

TINY = [
    *SIZES,
    "--gin.VOCAB_SIZE=40",
    "--batch_size=2",
    "--input_length=6",
    "--target_length=5",
]
LENGTHS = {"inputs": 6, "targets": 5}


pytestmark = pytest.mark.usefixtures("clear_gin")


def read_csv(tmp_path, *arguments):
    """{(model, part, kind, quantity): (ours, paper)}, with None for nothing."""
    path = tmp_path / "profile.csv"
    run_command("costs", [*arguments, "--format=csv", f"--output={path}"])
    rows = csv.DictReader(io.StringIO(path.read_text()))
    return {
        (row["model"], row["part"], row["kind"], row["quantity"]): tuple(
            float(row[column]) if row[column] else None for column in ("ours", "paper")
        )
        for row in rows
    }


def test_flops_of_each_operation():
    @tf.function
    def function(x, kernel, image, signal, ids):
        y = tf.matmul(x, kernel) + 1.0  # [2, 5]
        y = tf.nn.softmax(tf.einsum("ab,cb->ac", y, y))  # [2, 2]
        image = tf.nn.conv2d(image, tf.ones((2, 2, 3, 7)), 2, "VALID")  # [1, 2, 2, 7]
        waves = tf.signal.irfft(tf.signal.rfft(signal))  # [3, 8]
        return tf.reduce_sum(y), image, waves, ids + 1, tf.cast(ids, "float32")

    shapes = (2, 3), (3, 5), (1, 4, 4, 3), (3, 8)
    specs = [tf.TensorSpec(shape, "float32") for shape in shapes]
    traced = function.get_concrete_function(*specs, tf.TensorSpec((9,), "int32"))
    products = 2 * 2 * 3 * 5 + 2 * 2 * 2 * 5 + 2 * (2 * 2 * 7) * (2 * 2 * 3)
    assert matmul_flops(traced) == products
    assert sum(op.rest for op in op_flops(traced)) == 10 + 5 * 4 + 4 + 2 * 3 * 60


# A function of numbers [2, 3, 4], and what of it has no formula.
WITHOUT_FORMULA = {
    "AvgPool": lambda x: tf.nn.avg_pool1d(x, 3, 1, "SAME"),
    "Betainc": lambda x: tf.math.betainc(x, x, x),
    "Cholesky": lambda x: tf.linalg.cholesky(x[:, :3, :3]),
    "SegmentMean": lambda x: tf.math.segment_mean(x, [0, 0]),
    "While without products": lambda x: tf.while_loop(
        lambda y: tf.reduce_sum(y) < 9, lambda y: (y + 1,), (x,)
    )[0],
    "complex Einsum": lambda x: tf.einsum("abc->a", tf.complex(x, x)),
    "complex Mul": lambda x: tf.math.real(tf.complex(x, x) * tf.complex(x, x)),
}


@pytest.mark.parametrize("name", WITHOUT_FORMULA)
def test_an_operation_without_a_formula_is_named(name):
    traced = tf.function(WITHOUT_FORMULA[name], autograph=False)
    found = op_flops(traced.get_concrete_function(tf.TensorSpec((2, 3, 4), "float32")))
    assert [op.type for op in found if not (op.matmul or op.rest)] == [name]


def test_arithmetic_of_unknown_length_is_named():
    traced = tf.function(lambda x: tf.transpose(tf.exp(x)))
    (found,) = op_flops(traced.get_concrete_function(tf.TensorSpec((None, 4))))
    assert (found.type, found.matmul, found.rest) == ("Exp", 0, 0)


def test_an_update_without_a_formula_is_named():
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def function():
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=0.1, delta=[1.0, 1.0]
        )

    (found,) = op_flops(function.get_concrete_function())
    assert (found.type, found.rest) == ("ResourceApplyGradientDescent", 0)


def test_moving_numbers_has_no_flops():
    @tf.function
    def function(x):
        top, _ = tf.math.top_k(tf.transpose(x, [0, 2, 1]), 2)
        top = tf.where(tf.random.uniform(top.shape) < 0.5, top, tf.zeros_like(top))
        y = tf.concat([tf.gather(x, [1, 0]), tf.roll(x, 1, axis=1)], axis=0)[..., ::-1]
        y = tf.split(tf.tile(tf.reshape(y, [-1, 4]), [2, 1]), 2)
        return y, tf.stack([top, top])

    traced = function.get_concrete_function(tf.TensorSpec((2, 3, 4), "float32"))
    # Random numbers between two bounds are scaled and moved.
    assert {op.type for op in op_flops(traced)} <= {"Mul", "AddV2", "Sub"}


def test_products_of_complex_numbers():
    """Four products and four sums for each multiply-add of two."""

    @tf.function
    def function(x):
        z = tf.complex(x, x)
        return tf.matmul(z, z, transpose_b=True), tf.einsum("abc,adc->abd", z, z)

    traced = function.get_concrete_function(tf.TensorSpec((2, 3, 4), "float32"))
    assert matmul_flops(traced) == 2 * 8 * (2 * 3 * 3 * 4)


def test_flops_of_a_mixture():
    """FLOPs of the rows that its experts have; its router's come on top."""
    layer = MoE(4, 16, SwitchRouter)
    layer.build((None, None, 8))

    def forward(x):
        return layer(x, context=Context(), training=True)

    traced = tf.function(forward).get_concrete_function(tf.TensorSpec((2, 32, 8)))
    rows = 4 * 20  # 1.25 of an even share
    router = 2 * 64 * 8 * 4
    assert matmul_flops(traced) == 2 * rows * 2 * 8 * 16 + router


def count_row(name, target_length):
    """The `Profile` of a row of Remixer's Table 1 at full size, and its `PaperRow`."""
    settings = configuration.read(
        [f"papers/remixer/table1/{name}.gin"], [], complete=False
    )
    profile = count(
        value_of(settings, "Run.model"),
        Adafactor,
        batch_size=128,
        feature_lengths={"inputs": 512, "targets": target_length},
    )
    return profile, part_of(settings, "PaperRow")()


@pytest.mark.slower
@pytest.mark.parametrize(
    ("name", "parameters", "flops", "printed"),
    [
        ("t5_1_1_base", 247.58e6, 1.82e13, (248e6, 3.4e13, 9)),
        ("remixer_base", 253.87e6, 1.99e13, (324e6, 2.1e13, 6)),
    ],
)
def test_papers_flops_and_parameters_at_full_size(name, parameters, flops, printed):
    """Products 2 m n k of the paper's batch, and Table 1."""
    found, row = count_row(name, target_length=114)
    np.testing.assert_allclose(found.total.parameters, parameters, rtol=1e-4)
    np.testing.assert_allclose(found.total.matmul_flops, flops, rtol=0.01)
    assert 0 < found.total.rest_flops < 0.01 * found.total.matmul_flops
    assert (row.parameters, row.flops, row.steps_per_second) == printed


@pytest.mark.slower
def test_all_rows_of_a_table(tmp_path):
    found = read_csv(tmp_path, "--table=remixer/table1", *TINY)
    printed = {
        key[0]: paper
        for key, (_, paper) in found.items()
        if key[3] == "steps_per_second"
    }
    assert {name: printed[name] for name in ("T5.1.1 Base", "Mixer Base")} == {
        "T5.1.1 Base": 9,
        "Mixer Base": 11,
    }
    models = {key[0] for key in found}
    assert len(models) == 6 and {"Mixer Base", "Remixer SBase"} < models
    for model in ("T5.1.1 Base", "Remixer Base"):
        for quantity in ("parameters", "matmul_flops", "rest_flops"):
            parts = [
                value
                for key, (value, _) in found.items()
                if key[0] == model and key[1] and key[3] == quantity
            ]
            total = found[model, "", "", quantity][0]
            assert sum(parts) == total and len(parts) > 8
        products, rest = (
            found[model, "", "", f"{which}_flops"][0] for which in ("matmul", "rest")
        )
        assert found[model, "", "", "flops"][0] == products + rest
    assert {kind for _, _, kind, _ in found} > {
        "",
        "self_attention",
        "cross_attention",
        "feed_forward",
        "remixer",
        "remixer: mixing",
    }


@pytest.mark.slow
def test_masked_tokens_alone_have_logits(tmp_path):
    """Of a gMLP paper's row: the body, and logits on as many positions as told."""
    tiny = [
        x for x in TINY if "CODER" not in x and "D_KV" not in x and "HEADS" not in x
    ]
    file = "--gin_file=papers/gmlp/table5/gmlp_base.gin"
    found = read_csv(tmp_path, file, "--gin.NUM_LAYERS=1", *tiny)
    products, _ = found["gMLP base", "head", "", "matmul_flops"]
    assert products == 2 * 2 * 5 * 16 * 40
    assert found["gMLP base", "", "", "flops"][1] == 158.0e9


@pytest.mark.slower
def test_a_row_is_counted_as_its_paper_counts(tmp_path):
    """Two tables at once: images one by one, texts one by one with 76 masked tokens."""
    tiny = ["--gin.D_MODEL=16", "--gin.D_FF=24", "--gin.NUM_LAYERS=1"]
    tables = ["--table=gmlp/table1", "--table=gmlp/table5"]
    found = read_csv(tmp_path, *tables, *tiny)
    batch = {
        model: {
            name: found[model, "", "", name][0]
            for name in ("batch_size", "inputs", "targets")
            if (model, "", "", name) in found
        }
        for model in ("gMLP-B", "aMLP base", "BERT large")
    }
    text = {"batch_size": 1, "inputs": 512, "targets": 76}
    assert batch == {"gMLP-B": {"batch_size": 1}, "aMLP base": text, "BERT large": text}
    assert len({key[0] for key in found}) == 3 + 7
    file = "--gin_file=papers/gmlp/table1/gmlp_b.gin"
    found = read_csv(tmp_path, file, *tiny, "--batch_size=3")
    assert found["gMLP-B", "", "", "batch_size"][0] == 3


@pytest.mark.slower
def test_t5_at_512_targets():
    found, _ = count_row("t5_1_1_base", target_length=512)
    np.testing.assert_allclose(found.total.matmul_flops, 3.29e13, rtol=0.01)


@pytest.mark.slow
def test_language_models(tmp_path):
    """The products of rows of `target_length` tokens, by hand; no inputs."""
    sizes = [x for x in TINY if "CODER" not in x]
    file = "--gin_file=models/transformer_lm_tiny.gin"
    found = read_csv(tmp_path, file, "--gin.NUM_LAYERS=1", *sizes, "--measure")
    d, f, n, tokens = 16, 24, 5, 2 * 5  # two heads of 8 are as wide as d
    products = 2 * tokens * (4 * d * d + 2 * n * d + 2 * d * f + 40 * d)
    name = "transformer_lm_tiny"
    assert found[name, "", "", "matmul_flops"][0] == products
    assert found[name, "", "", "targets"][0] == n
    assert (name, "", "", "inputs") not in found
    steps, rate = (
        found[name, "", "", f"{x}_per_second"][0] for x in ("steps", "tokens")
    )
    np.testing.assert_allclose(rate, steps * tokens, rtol=1e-6)


@pytest.mark.slower
@pytest.mark.parametrize(
    ("optimizer", "dtype_policy"),
    [
        (Adafactor, "mixed_bfloat16"),
        pytest.param(keras.optimizers.AdamW, "float32", marks=pytest.mark.slow),
        pytest.param(Adafactor, "float32", marks=pytest.mark.slow),
        pytest.param(keras.optimizers.AdamW, "mixed_bfloat16", marks=pytest.mark.slow),
    ],
)
def test_counts_are_those_of_a_real_model(optimizer, dtype_policy):
    bindings = [x[len("--gin.") :] for x in TINY if x.startswith("--gin.")]
    settings = configuration.read(
        ["models/remixer_tiny.gin"], ["DROPOUT_RATE=0.1", *bindings]
    )
    model = value_of(settings, "Run.model")
    real = build_model(model, dtype_policy)
    real_optimizer = optimizer()
    real_optimizer.build(real.trainable_variables)
    arguments = {
        "batch_size": 3,
        "feature_lengths": LENGTHS,
        "dtype_policy": dtype_policy,
    }
    found = count(model, optimizer, **arguments)
    weights = real.trainable_variables
    assert found.total.parameters == sum(math.prod(v.shape) for v in weights)
    for counted, variables in (
        (found.parameter_bytes, real.variables),
        (found.optimizer_bytes, real_optimizer.variables),
    ):
        assert counted == sum(v.numpy().nbytes for v in variables)
    mixing = found.parts["encoder", "remixer: mixing"]
    layers = [x for x in real._flatten_layers() if isinstance(x, LengthMixing)]
    assert mixing.parameters == 256 * 256 and len(layers) == 2
    # H X', and H times the padding mask.
    products = 2 * 3 * 6 * 6 * 24 + 2 * 3 * 6 * 6
    assert mixing.matmul_flops == products
    logits = 4 * 3 * 5 * 40
    gradients = 4 * found.total.parameters
    assert count_activations(model, **arguments) > max(logits, gradients)


@pytest.mark.slow
def test_a_large_table_is_counted_without_a_warning(tmp_path, recwarn):
    """Nothing of 134 million numbers is made."""
    sizes = "--gin.VOCAB_SIZE=2097152", "--gin.D_MODEL=64"
    read_csv(tmp_path, "--gin_file=models/t5_1_1_tiny.gin", *TINY, *sizes)
    assert not [x for x in recwarn if "IndexedSlices" in str(x.message)]


@pytest.mark.slow
def test_a_run_is_counted_as_it_trains(tmp_path):
    """Its own batch and lengths, and a vocabulary that is not trained yet."""
    table = tmp_path / "train.tsv"
    table.write_text("inputs\ttargets\n" + "a cat slept\ta dog ran\n" * 20)
    bindings = [
        *(x.removeprefix("--gin.") for x in SIZES),
        f"FILES = {{'train': '{table}'}}",
        "table_task.inputs = '{inputs}'",
        "table_task.targets = '{targets}'",
        "VOCABULARY = @trained_vocabulary()",
        f"trained_vocabulary.path = '{tmp_path}/words.model'",
        "trained_vocabulary.model_type = 'word'",
        "FEATURE_LENGTHS = {'inputs': 7, 'targets': 5}",
        "MAX_LENGTH = 8",
        "BATCH_SIZE = 3",
        "TRAIN_STEPS = 200",
    ]
    files = ["models/remixer_tiny.gin", "runs/own_task.gin"]
    settings = configuration.read(files, bindings)
    text = settings.text()
    gin.clear_config()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "operative_config.gin").write_text(text)
    found = read_csv(tmp_path, f"--model_dir={tmp_path}/run")
    batch = {key[3]: ours for key, (ours, _) in found.items() if key[1] == ""}
    names = ("batch_size", "inputs", "targets")
    assert [batch[name] for name in names] == [3, 7, 5]
    assert not (tmp_path / "words.model").exists()


@pytest.mark.slow
def test_tied_logits_count_as_logits(tmp_path):
    found = read_csv(tmp_path, "--gin_file=architectures/t5_1_0.gin", *TINY)
    products, _ = found["t5_1_0", "logits", "", "matmul_flops"]
    assert products == 2 * 2 * 5 * 16 * 40


@pytest.mark.slow
def test_adapters_and_what_they_freeze(tmp_path):
    """Query and value of three attentions, each of 16 channels, by rank 3."""
    arguments = ["--gin_file=models/t5_1_1_tiny.gin", *TINY]
    arguments.append("--layout=layouts/data_8.gin")
    adapters = ["--gin.Run.adapters=@Lora()", "--gin.Lora.rank=3"]
    without = read_csv(tmp_path, *arguments)
    found = read_csv(tmp_path, *arguments, *adapters)
    more, key = 3 * 2 * 3 * (16 + 16), ("t5_1_1_tiny", "", "", "parameters")
    assert found[key][0] == without[key][0] + more
    bytes_of = {quantity: ours for (*_, quantity), (ours, _) in found.items()}
    assert bytes_of["gradients_bytes"] == 4 * more
    assert bytes_of["weights_bytes"] == bytes_of["parameter_bytes"]


@pytest.mark.slower
def test_measured_and_printed_in_every_format(tmp_path, capsys):
    files = "--gin_file=models/t5_1_1_tiny.gin,models/remixer_tiny.gin"
    arguments = [files, *TINY, "--measure"]
    found = read_csv(tmp_path, *arguments)
    for model in ("t5_1_1_tiny", "remixer_tiny"):
        steps, _ = found[model, "", "", "steps_per_second"]
        tokens, _ = found[model, "", "", "tokens_per_second"]
        assert steps > 0
        np.testing.assert_allclose(tokens, steps * 2 * (6 + 5), rtol=1e-6)
    files = "--gin_file=models/t5_1_1_tiny.gin,papers/remixer/table1/remixer_base.gin"
    layout = "--layout=layouts/data_8.gin"
    run_command("costs", [files, *TINY, "--format=markdown", layout])
    models, title, devices, *parts = capsys.readouterr().out.split("\n\n")
    for table in (models, devices, *parts[1::2]):
        cells = [line.split("|")[1:-1] for line in table.splitlines() if line]
        assert len({len(line) for line in cells}) == 1 and len(cells) >= 4
        assert all(kind.strip() for _, kind, *_ in cells)
    header, _, t5, remixer = [line.split(" | ") for line in models.splitlines()]
    assert header[1:6] == [
        *("parameters", "parameters (paper)", "batch", "inputs", "targets")
    ]
    assert t5[2] == "" and remixer[2] == "324.00M"
    assert t5[3:6] == ["2", "6", "5"]
    assert [parts[0], parts[2]] == ["t5_1_1_tiny", "Remixer Base"]
    _, _, *rows = [line.split(" | ") for line in devices.splitlines()]
    weights = header.index("weights")
    assert title == "on each device"
    for row, model in zip(rows, (t5, remixer), strict=True):  # Each has the whole.
        assert row[:3] == [model[0], "data:8", model[weights]]
    run_command("costs", [files, *TINY])
    text = capsys.readouterr().out
    assert "324.00M" in text and "remixer: mixing" in text and "steps/s" in text


def find(count, start, number):
    """The value that `find_value` finds, and how many counts it takes."""
    tried = []

    def counted(value):
        tried.append(value)
        return count(value)

    match = find_value(counted, start, Wanted("flops", number, "D", "another"))
    assert match.found == count(match.value)
    return match.value, len({*tried})


def quadratic(width):
    """A Transformer's parameters: 12 layers, 12 heads that must divide the width."""
    if width % 12:
        raise UserError(f"12 heads do not divide {width}")
    return 12 * 12 * width**2 + 32_000 * width


@pytest.mark.parametrize("value", [1, 511, 512, 513, 40_000])
def test_a_value_whose_count_rises_or_falls_evenly(value):
    for line in (lambda x: 10**6 + 7 * x, lambda x: 10**6 - 7 * x):
        found, counts = find(line, 512, line(value))
        assert found == value and counts <= 7


@pytest.mark.parametrize("width", [48, 204, 756, 768, 780, 6144])
def test_a_width_that_heads_divide(width):
    number = quadratic(width)
    found, counts = find(quadratic, 768, number)
    assert found == width and counts <= 25
    assert find(quadratic, 768, 1.0005 * number)[0] == width  # the nearest one


def test_what_cannot_be_matched():
    for number, words in (
        (31, "no D gives 31 flops, those of another, to within 0.5%: D = 1 gives 40."),
        (105, "D = 7 gives 100, D = 8 gives 110"),
    ):
        with pytest.raises(UserError, match=words):
            find(lambda x: 30 + 10 * x, 50, number)
    with pytest.raises(UserError, match="D does not change flops: 5 with 3 and with 4"):
        find(lambda x: 5, 3, 9)
    with pytest.raises(UserError, match="12 heads do not divide 5"):
        find(quadratic, 5, 9)


MATCH = ["--gin_file=models/t5_1_1_tiny.gin", *TINY, "--vary=D_FF"]


@pytest.mark.slower
def test_a_model_with_as_many_parameters_as_a_number(tmp_path):
    """4,592 and 96 for each unit: three matrices of 16 channels in two layers."""
    found = read_csv(tmp_path, *MATCH, "--match=parameters=8430")
    key = ("t5_1_1_tiny", "", "")
    assert found[*key, "D_FF"][0] == 40
    assert found[*key, "parameters"][0] == 4592 + 96 * 40


@pytest.mark.slower
def test_the_guides_models_of_equal_size(capsys):
    """By hand the Remixer has 8,881,920 parameters and 1,536 for each unit."""
    page = (ROOT / "docs" / "guides" / "papers.md").read_text()
    (command,) = re.findall(r"costs (.*\\\n.* --match=parameters .*)", page)
    run_command("costs", command.replace("\\\n", " ").split())
    (line,) = re.findall("^D_FF = .*$", capsys.readouterr().out, re.M)
    assert f"\n{line}\n" in page


@pytest.mark.slower
def test_a_model_with_as_many_flops_as_the_first(capsys):
    """The batch is that of the first one's paper. A line of gin gives the value."""
    sizes = ["--gin.D_MODEL=16", "--gin.NUM_LAYERS=1", "--gin.VOCAB_SIZE=40"]
    files = "--gin_file=papers/gmlp/table5/gmlp_base.gin,models/gmlp_tiny_mlm.gin"
    more = "--match=MATMUL_FLOPS", "--vary=D_FF", "--format=markdown"
    run_command("costs", [files, *sizes, *more])
    shown = capsys.readouterr().out
    (line,) = (x for x in shown.splitlines() if x.startswith("D_FF = "))
    assert line.startswith("D_FF = 3072  # gmlp_tiny_mlm: ")
    assert line.endswith(" matmul_flops, +0.000% from gMLP base")
    rows = [x.split(" | ") for x in shown.splitlines()[:4]]
    assert rows[3][rows[0].index("inputs")] == "512"


def test_a_macro_that_nothing_uses_is_not_varied(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text("include 'models/t5_1_1_tiny.gin'\nSESSION = 3\n")
    match = f"--gin_file={path}", "--vary=SESSION", "--match=parameters=1e6"
    with pytest.raises(UserError, match=r"mine.gin uses no macro 'SESSION' .* D_FF"):
        run_command("costs", match)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*MATCH, "--match=parameters"], ["a second model", "parameters=110e6"]),
        ([*MATCH, "--match=parameters=many"], ["above 0", "parameters=many"]),
        ([*MATCH, "--match=parameter=5"], ["Nearest: parameters"]),
        (MATCH, ["--match and --vary go together"]),
        ([*MATCH, "--vary=D_F", "--match=flops=1e9"], ["'D_F'", "Nearest: D_FF, D_KV"]),
        ([*MATCH, "--vary=VOCABULARY", "--match=flops=1e9"], ["whole number"]),
        ([*MATCH, "--match=parameters=100"],
         ["models/t5_1_1_tiny.gin: no D_FF", "D_FF = 1 gives 4,688. Vary another m"]),
        ([*MATCH, "--gin_file=models/remixer_tiny.gin", "--match=flops",
          "--input_length=300"],
         ["with D_FF = ", "max_length=256", "this one takes: --input_length=256 "]),
        (["--gin_file=models/t5_1_1_bse.gin"], ["t5_1_1_bse.gin", "t5_1_1_base.gin"]),
        (["--table=remixer/tabel1"], ["'remixer/tabel1'", "Nearest: remixer/table1"]),
        (["--gin_file=runs/from_t5_1_1.gin", "--gin.INITIAL_CHECKPOINT='x'"],
         ["names no model", "Run.model"]),
        ([], ["nothing to count", "--gin_file"]),
        (["--gin_file=models/t5_1_1_tiny.gin"] * 2, ["are one file. Name each file"]),
        (["--gin_file=models/t5_1_1_tiny.gin",
          f"--gin_file={configuration.gin_folder()}/models/../models/t5_1_1_tiny.gin"],
         ["are one file. Name each file"]),
        (["--table=remixer/table1",
          "--gin_file=papers/remixer/table1/remixer_base.gin"], ["are one file"]),
        (["--gin_file=models"], ["'models' is a folder. Name a gin file in it",
                                 "models/amlp_base_mlm.gin"]),
        (["--gin_file=models/t5_1_1_base.gin", "--format=xml"], ["xml", "markdown"]),
        (["--gin_file=models/remixer_tiny.gin", *TINY, "--input_length=300"],
         ["300", "max_length=256"]),
    ],
)  # fmt: skip
def test_errors_are_one_message(arguments, words):
    with pytest.raises(Exception) as error:  # noqa: B017
        run_command("costs", arguments)
    assert isinstance(error.value, configuration.UserError)
    message = str(error.value)
    assert all(word in message for word in words), message
