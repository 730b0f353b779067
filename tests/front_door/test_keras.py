"""Models as Keras teaches: `fit`, `save`, `load_model`, `get_config`."""

import functools
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import remixer_tf as rt
from remixer_tf.errors import MissingFileError, UserError
from remixer_tf.layers import Context, SelfAttention, Sublayer
from remixer_tf.models import (
    ClassificationHead,
    DecoderOnly,
    EmbeddingHead,
    MaskedLMHead,
    SpanHead,
    TransformerStack,
)
from remixer_tf.models.keras_model import _reads_ids
from remixer_tf.named_models import presets
from remixer_tf.objectives.batches import check_known_targets
from remixer_tf.objectives.losses import cross_entropy
from tests.models.tiny import tiny_encoder, tiny_mixture

pytestmark = pytest.mark.usefixtures("clear_gin")
# One of each family fits. `tests/configuration/test_paper_rows.py` trains the others.
FITTED = ["remixer_tiny", "bert_tiny", "gmlp_vision_tiny", "switch_lm_tiny"]
OTHERS = [p.name for p in presets("*_tiny*") if p.name not in FITTED]
SAVED = ["gmlp_lm_tiny", "t5_1_1_tiny"]
SIZES = {"vocab_size": 48, "max_length": 16}


def fewest_layers(name):
    """Sizes: the fewest layers that have all parts of the preset."""
    if name == "amlp_upper_tiny_mlm":  # It lists its layers.
        return {}
    sizes = {"num_layers": 2, "num_sparse_layers": 1}
    if not name.startswith("switch"):  # Each second layer has experts.
        sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return sizes


def make(name, **sizes):
    """A tiny model, and a batch of its own; sizes that it lacks are left out."""
    known = rt.presets(name)[0]
    sizes |= {} if "vision" in known.family else SIZES
    while True:
        try:
            model = rt.create(name, **sizes)
            break
        except ValueError as error:  # It has no such size.
            sizes = {k: v for k, v in sizes.items() if f"'{k}'" not in str(error)}
    rng = np.random.default_rng(0)
    if isinstance(model, rt.models.ImageClassifier):
        side = model.image_size
        labels = np.zeros([4, 1], "int32")
        images = rng.normal(size=[4, side, side, 3]).astype("float32")
        return model, {"images": images, "labels": labels, "label_weights": labels + 1}
    spec = model.batch_spec(4, {"inputs": 8, "targets": 8})
    return model, {
        key: np.ones(x.shape, "int32")
        if key.endswith("weights")
        else rng.integers(1, 7, x.shape).astype("int32")
        for key, x in spec.items()
    }


def check_made_again(model):
    again = type(model).from_config(model.get_config())
    again.build()
    shapes = {v.path: v.shape for v in model.variables}
    assert {v.path: v.shape for v in again.variables} == shapes


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slower] * (n != "remixer_tiny"))
        for n in FITTED
    ],
)
def test_fits_saves_and_loads(name, tmp_path):
    model, batch = make(name, **fewest_layers(name))
    # One of them in a graph, whose tracing takes most of the time.
    eagerly = keras.backend.backend() == "tensorflow" and name != "bert_tiny"
    model.compile(
        rt.Adafactor(1e-3), weighted_metrics=["accuracy"], run_eagerly=eagerly
    )
    history = model.fit(batch, batch_size=4, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert len(history["accuracy"]) == 3
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    expected, found = (m.predict(batch, verbose=0) for m in (model, loaded))
    np.testing.assert_array_equal(found, expected)
    assert isinstance(loaded.optimizer, rt.Adafactor)
    check_made_again(model)


@pytest.mark.slower
@pytest.mark.parametrize("name", OTHERS)
def test_saves_and_loads(name, tmp_path):
    model, batch = make(name, **fewest_layers(name))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(batch), model(batch))
    check_made_again(model)


@pytest.fixture
def trained():
    return make("t5_1_1_tiny", **fewest_layers("t5_1_1_tiny"))


@pytest.mark.slow
def test_the_loss_is_that_of_all_weighted_targets(trained):
    model, batch = trained
    batch["decoder_loss_weights"][:, 5:] = 0
    targets = batch["decoder_target_tokens"]
    logits = np.asarray(model(batch))
    picked = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    log_z = np.log(np.exp(logits).sum(-1))
    plain = log_z - picked
    weights, rows = batch["decoder_loss_weights"], np.array([1.0, 2.0, 0.0, 1.0])
    smoothed = rt.CrossEntropy(z_loss=1e-4)
    for loss, losses in ((None, plain), (smoothed, plain + 1e-4 * log_z**2)):
        model.compile(rt.Adafactor(1e-3), loss=loss, run_eagerly=True)
        evaluate = functools.partial(model.evaluate, batch, verbose=0)
        on_batch = functools.partial(model.test_on_batch, batch)
        found = [evaluate(), evaluate(targets, sample_weight=weights)]
        np.testing.assert_allclose(found, losses[:, :5].mean(), rtol=1e-5)
        found = [evaluate(targets, sample_weight=w) for w in (rows, rows[:, None])]
        expected = np.average(losses.mean(axis=1), weights=rows)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        found = [f(sample_weight=rows) for f in (evaluate, on_batch)]
        expected = np.average(losses[:, :5].mean(axis=1), weights=rows)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_fit_weighs_rows_of_a_batch_alone():
    """The rows of validation data too, and those that `evaluate` has by position."""
    model = tiny_encoder("bert", functools.partial(ClassificationHead, 3))
    rng = np.random.default_rng(0)
    batch = {
        "encoder_input_tokens": rng.integers(1, 7, (4, 8)),
        "labels": rng.integers(0, 3, (4, 1)),
        "label_weights": np.array([[1.0], [2.0], [1.0], [1.0]]),
        "teacher_tokens": np.full((4, 8), 999),  # which no model reads
    }
    rows = np.array([1.0, 0.5, 0.0, 2.0])
    logits = np.asarray(model(batch), "float64")[:, 0]
    picked = np.take_along_axis(logits, batch["labels"], axis=-1)[:, 0]
    each = np.log(np.exp(logits).sum(-1)) - picked
    expected = np.average(each, weights=rows * batch["label_weights"][:, 0])
    sgd = keras.optimizers.SGD(0.0)
    model.compile(sgd, run_eagerly=keras.backend.backend() == "tensorflow")
    # Keras on JAX would take the weights out of the model before it finds a mistake.
    wrong = {**batch, "labels": np.zeros([4, 2], "int32")}
    with pytest.raises(UserError, match=r"^Expected targets \[batch, 1\], an id for"):
        model.fit(wrong, verbose=0)
    validation = (batch, None, rows)
    history = model.fit(
        batch, validation_data=validation, class_weight={}, verbose=0
    ).history
    found = [history["val_loss"][0], model.evaluate(batch, None, 4, 0, rows)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for method in (model.fit, model.train_on_batch):
        with pytest.raises(UserError, match="^class_weight weighs rows by their class"):
            method(batch, class_weight={0: 2.0})
    batches = tf.data.Dataset.from_tensors(batch)
    with pytest.raises(UserError, match="^class_weight weighs rows by their class"):
        model.fit(batches, class_weight={0: 2.0})


@pytest.mark.parametrize(
    "head",
    [MaskedLMHead, functools.partial(ClassificationHead, 3), SpanHead],
    ids=["tokens", "class", "span"],
)
def test_the_loss_of_an_encoder_is_the_trainers(head):
    model = tiny_encoder("bert", head)
    rng = np.random.default_rng(0)
    spec = model.batch_spec(4, {"inputs": 8, "targets": 2})
    batch = {k: rng.integers(0, 3, x.shape).astype("int32") for k, x in spec.items()}
    model.compile("sgd", run_eagerly=keras.backend.backend() == "tensorflow")
    sums = rt.CrossEntropy().sums(model(batch), batch)
    expected = float(sums["objective"]) / float(sums["weight"])
    np.testing.assert_allclose(model.evaluate(batch, verbose=0), expected, rtol=1e-5)


def test_accuracy_reads_targets_of_one_kind():
    """Keras chooses what it is by the first targets, and would be wrong for others."""
    model = tiny_encoder("bert", functools.partial(ClassificationHead, 3))
    logits, ids = np.zeros([4, 1, 3], "float32"), np.array([0, 1, 2, 2])
    shares = np.eye(3, dtype="float32")[ids]
    kinds = {"ids of classes": ids, "each class' share": shares}
    for first, other in (kinds, [*kinds][::-1]):
        model.compile("sgd", metrics=["accuracy"])
        model.compute_metrics({}, kinds[first], logits)
        message = f"^The metric 'accuracy' reads {first}, and targets are {other}"
        with pytest.raises(UserError, match=message):
            model.compute_metrics({}, kinds[other], logits)


def test_vectors_have_no_loss_of_their_own():
    model = tiny_encoder("bert", EmbeddingHead)
    batch = {"encoder_input_tokens": np.ones([4, 8], "int32")}
    vectors = np.ones([4, 1, 8], "float32")
    model.compile("sgd")
    with pytest.raises(UserError, match="^Model 'encoder_only' gives vectors and no"):
        model.fit(batch, vectors, verbose=0)
    eagerly = keras.backend.backend() == "tensorflow"
    model.compile("sgd", keras.losses.CosineSimilarity(), run_eagerly=eagerly)
    assert -1 <= model.evaluate(batch, vectors, verbose=0) <= 1


def test_targets_of_no_class_are_refused():
    """Targets of weight 0 may be any, and a loss may have its own id to ignore."""
    model = tiny_encoder("bert", functools.partial(ClassificationHead, 3))
    batch = {"encoder_input_tokens": np.ones([2, 8], "int32")}
    # The batch's targets give way to y.
    labels = {"labels": np.array([9, 9]), "label_weights": np.ones(2)}
    right, wrong, negative = (np.array([0, k]) for k in (2, 3, -1))
    model.compile("sgd")
    for method in (model.fit, model.evaluate, model.train_on_batch):
        with pytest.raises(UserError, match="class 3, but the model's num_classes is"):
            method({**batch, **labels}, wrong)
    with pytest.raises(UserError, match="class 9, but the model's num_classes is 3"):
        model.fit({**batch, **labels})
    with pytest.raises(UserError, match="^The targets hold -1, and ids start at 0"):
        model.fit(batch, negative)
    with pytest.raises(UserError, match="class 3, but the model's num_classes is"):
        model.fit(batch, right, validation_data=(batch, wrong))
    # A later call would find them in a graph, without a rank.
    message = r"^targets must be integers, or floats for each class. Received: "
    for targets in (np.eye(3, dtype=int)[right], right.astype("float32")):
        data = tf.data.Dataset.from_tensors((batch, targets))
        for given in ((batch, targets), (data,)):
            with pytest.raises(UserError, match=message):
                model.fit(*given)
    for weights in (np.array([1, 0]), np.array([[1.0], [0.0]])):
        check_known_targets(wrong, weights, model)
    sparse = keras.losses.SparseCategoricalCrossentropy
    for loss, reads in (
        ("sparse_categorical_crossentropy", True),
        (rt.CrossEntropy(), True),
        (sparse(from_logits=True), True),
        (sparse(from_logits=True, ignore_class=3), False),
        ("mse", False),
    ):
        assert _reads_ids(loss) == reads
    stack = functools.partial(TransformerStack, {"shift": lambda **k: Shift(1, **k)}, 1)
    writer = DecoderOnly(stack, vocab_size=11, d_model=8)
    writer.build()
    writer.compile("sgd")
    tokens = {"decoder_input_tokens": np.ones([2, 4], "int32")}
    with pytest.raises(UserError, match="token id 11, but the model's vocab_size is"):
        writer.fit(tokens, np.full([2, 4], 11))
    message = r"^Expected targets \[batch, length\], an id .* targets \[(2|batch)\]$"
    for targets, error in (
        (np.ones(2, "int32"), message),
        (np.ones([2, 4]), "^targets must be integers, or floats for each class"),
    ):
        for given in ((tokens, targets), (dataset((tokens, targets)),)):
            with pytest.raises(UserError, match=error):
                writer.fit(*given, verbose=0)


class Batches(keras.utils.PyDataset):
    def __init__(self, *batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def dataset(*batches):
    specs = keras.tree.map_structure(
        lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), batches[0]
    )
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=specs)


class Tensor(np.ndarray):
    """An array with PyTorch's names: the library is no dependency."""

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)


class DataLoader:
    """The part of PyTorch's that Keras and `streams` read."""

    batch_size = None

    def __init__(self, *batches):
        self.dataset = batches

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        for batch in self.dataset:
            yield keras.tree.map_structure(lambda x: x.view(Tensor), batch)


DataLoader.__module__ = "torch.utils.data.dataloader"


@pytest.fixture
def torch_loader(monkeypatch):
    """Keras imports torch for a loader of its."""
    data = types.SimpleNamespace(DataLoader=DataLoader)
    torch = types.SimpleNamespace(utils=types.SimpleNamespace(data=data))
    monkeypatch.setitem(sys.modules, "torch", torch)


def test_ids_of_a_distributed_dataset_are_not_checked_and_it_says_so():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a Dataset of TensorFlow's devices")
    model = tiny_encoder("bert", functools.partial(ClassificationHead, 3))
    model.compile("sgd")
    ones = np.ones([2, 8], "int32")
    data = tf.data.Dataset.from_tensors(({"encoder_input_tokens": ones}, ones[:, 0]))
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    data = strategy.experimental_distribute_dataset(data)
    with pytest.warns(UserWarning, match="in a DistributedDataset are not compared"):
        model.evaluate(data, verbose=0)


@pytest.mark.usefixtures("torch_loader")
@pytest.mark.parametrize(
    "stream", [dataset, Batches, lambda *b: (x for x in b), DataLoader]
)
def test_ids_of_a_stream_are_checked_batch_by_batch(stream):
    model = tiny_encoder("bert", functools.partial(ClassificationHead, 3))
    model.compile("sgd", run_eagerly=keras.backend.backend() == "tensorflow")
    right, wrong = np.array([0, 2]), np.array([0, 3])
    tokens, unknown = np.ones([2, 8], "int32"), np.full([2, 8], 99, "int32")
    first = {"encoder_input_tokens": tokens}, right
    message = "^The data holds the class 3, but the model's num_classes is 3. Set NUM"
    for method in (model.fit, model.evaluate):
        with pytest.raises(UserError, match=message):
            method(stream(first, ({"encoder_input_tokens": tokens}, wrong)), verbose=0)
    with pytest.raises(UserError, match="the token id 99, but the model's vocab_size"):
        model.fit(stream(first, ({"encoder_input_tokens": unknown}, right)), verbose=0)
    ignored = np.array([1.0, 0.0])  # The weight of a target that may be any.
    found = model.evaluate(stream((first[0], wrong, ignored)), verbose=0)
    assert found == model.evaluate(first[0], right, sample_weight=ignored, verbose=0)


def test_a_users_error_in_a_stream_is_one_line():
    model = tiny_encoder("bert", functools.partial(ClassificationHead, 3))
    model.compile("sgd", run_eagerly=keras.backend.backend() == "tensorflow")
    batch = {"encoder_input_tokens": np.ones([2, 8], "int32")}, np.array([0, 2])

    def rows():
        yield batch
        raise MissingFileError("There is no file b.tsv.")

    specs = keras.tree.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), batch)
    data = tf.data.Dataset.from_generator(rows, output_signature=specs)
    for given in (rows(), data):
        with pytest.raises(MissingFileError, match="^There is no file b.tsv.$"):
            model.fit(given, verbose=0)


def test_class_weight_of_batches_alone_is_refused():
    model = tiny_encoder("bert", functools.partial(ClassificationHead, 3))
    model.compile("sgd")
    ones = np.ones([2, 1], "int32")
    batch = {"labels": ones, "label_weights": ones}
    batch["encoder_input_tokens"] = np.ones([2, 8], "int32")
    with pytest.raises(UserError, match="^class_weight weighs rows by their class"):
        model.fit(Batches(batch), class_weight={1: 2.0}, verbose=0)


@pytest.mark.parametrize("method", ["train_step", "compute_loss"])
def test_vectors_train_by_a_loss_that_a_model_computes(method):
    bert = type(tiny_encoder("bert", EmbeddingHead))

    class Own(bert):
        pass

    def train_step(self, *args):
        return ({"loss": ops.zeros(())}, args[0]) if len(args) > 1 else {"loss": 0.0}

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        return ops.mean(ops.square(y_pred - y))

    own = {"train_step": train_step, "compute_loss": compute_loss}[method]
    setattr(Own, method, own)
    model = tiny_encoder("bert", EmbeddingHead)
    model.__class__ = Own
    batch = {"encoder_input_tokens": np.ones([4, 8], "int32")}
    vectors = np.ones([4, 1, 8], "float32")
    model.compile("sgd", run_eagerly=keras.backend.backend() == "tensorflow")
    if method == "compute_loss":
        assert model.evaluate(batch, vectors, verbose=0) > 0
    assert model.fit(batch, vectors, verbose=0).history["loss"]


def test_wrong_batches_are_one_sentence(trained):
    model, _ = trained
    tokens, row = np.ones((2, 4), "int32"), np.ones(4, "int32")
    for batch, message in (
        (tokens, "reads a dictionary with encoder_input_tokens and decoder_input_tok"),
        ({"decoder_input_tokens": tokens}, r"Received: \['decoder_input_tokens'\]"),
        (
            {"encoder_input_tokens": row, "decoder_input_tokens": tokens},
            r"must be \[batch, length\] of one batch. Received: \(4,\), \(2, 4\)$",
        ),
        (
            {"encoder_input_tokens": tokens[:1], "decoder_input_tokens": tokens},
            r"Received: \(1, 4\), \(2, 4\)$",
        ),
    ):
        with pytest.raises(UserError, match=message):
            model(batch)


@pytest.mark.slower
def test_a_loss_of_keras_and_callbacks(trained, tmp_path):
    model, batch = trained
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss=loss)
    kept = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="val_loss")
    history = model.fit(
        batch, validation_data=batch, epochs=2, verbose=0, callbacks=[kept]
    )
    assert {"loss", "val_loss"} <= history.history.keys()
    assert keras.saving.load_model(tmp_path / "best.keras").count_params()


@pytest.mark.slower
def test_balancing_losses_are_added():
    model, batch = make("switch_lm_tiny")
    model.compile(rt.Adafactor(0.0))
    trained = model.fit(batch, batch_size=4, verbose=0).history["loss"][0]
    plain = cross_entropy(
        model(batch, training=True),  # Full experts drop tokens then.
        batch["decoder_target_tokens"],
        batch["decoder_loss_weights"],
    )
    # Switch's balance is at least alpha = 0.01 in each of two mixtures (Fedus et al.
    # 2021, Equation 4: N sum f_i P_i is 1 when tokens are spread evenly, else more).
    assert trained > float(plain["loss"]) / 32 + 2 * 0.95e-2


@keras.saving.register_keras_serializable("tests")
class Shift(Sublayer):
    """Moves channels by one position: a layer of a user's."""

    causal = True

    def __init__(self, scale, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale

    def call(self, x, context, training=False):
        return self.scale * keras.ops.pad(x, [[0, 0], [1, 0], [0, 0]])[:, :-1]


def test_layers_of_ones_own_are_saved(tmp_path):
    def decoder(**kwargs):
        sublayers = {
            "shift": lambda **kwargs: Shift(0.5, **kwargs),
            "attention": lambda **kwargs: SelfAttention(2, 4, **kwargs),
        }
        return TransformerStack(sublayers, 2, max_length=8, **kwargs)

    model = DecoderOnly(decoder, vocab_size=11, d_model=8)
    model.build()
    model.save(tmp_path / "own.keras")
    loaded = keras.saving.load_model(tmp_path / "own.keras")
    batch = {"decoder_input_tokens": np.array([[0, 3, 5, 7]], "int32")}
    np.testing.assert_array_equal(loaded(batch), model(batch))
    block = loaded.decoder.blocks[0].sublayer
    assert block.scale == 0.5 and block.causal


@pytest.mark.parametrize(
    "name",
    ["remixer_tiny", *(pytest.param(n, marks=pytest.mark.slow) for n in SAVED)],
)
def test_a_part_from_its_configuration_is_as_its_stack_told_it(name):
    """A decoder's parts stay causal: their outputs do not change with later tokens."""
    model, _ = make(name, **fewest_layers(name))
    told = [p for p in model._flatten_layers() if hasattr(p, "told_by_stack")]
    assert any(getattr(part, "causal", False) for part in told)
    for part in told:
        again = type(part).from_config(part.get_config())
        for fact in ("causal", "max_length", "bidirectional"):
            assert getattr(again, fact, None) == getattr(part, fact, None), part.path
    block = model.decoder.blocks[0].sublayer
    again = type(block).from_config(block.get_config())
    again.build((None, None, 128))
    x = np.random.default_rng(0).normal(size=(1, 8, 128)).astype("float32")
    changed = np.concatenate([x[:, :5], x[:, :3]], axis=1)
    first, second = (np.array(again(a, context=Context())) for a in (x, changed))
    np.testing.assert_array_equal(first[:, :5], second[:, :5])
    assert np.abs(first[:, 5:] - second[:, 5:]).max() > 0


class Seen(keras.metrics.Metric):
    """How many positions a metric without weights was shown."""

    def __init__(self):
        super().__init__(name="seen")
        self.total = self.add_variable((), "zeros")

    def update_state(self, targets, logits, sample_weight=None):
        self.total.assign_add(float(np.prod(targets.shape)))

    def result(self):
        return ops.convert_to_tensor(self.total)


def test_positions_that_see_later_tokens_are_neither_trained_nor_scored():
    """Partial routing (Yu et al. 2022): the first ceil(0.2 * 16) = 4 positions."""
    stack = tiny_mixture("smlp", max_length=16, routing="partial", vocab_size=11)
    model = DecoderOnly(stack, 11, 8)
    model.build()
    model.compile(
        keras.optimizers.SGD(0.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[Seen()],
        run_eagerly=keras.backend.backend() == "tensorflow",
        jit_compile=False,
    )
    rng = np.random.default_rng(0)
    targets = rng.integers(1, 11, (4, 12))
    batch = {"decoder_input_tokens": np.pad(targets, [(0, 0), (1, 0)])[:, :-1]}
    logits = np.asarray(model(batch), "float64")[:, 4:]
    picked = np.take_along_axis(logits, targets[:, 4:, None], axis=-1)[..., 0]
    expected = (np.log(np.exp(logits).sum(-1)) - picked).mean()
    other = targets.copy()
    other[:, :4] = rng.integers(1, 11, (4, 4))
    for weights in (None, np.ones((4, 1)), np.ones((4, 12))):
        model.reset_metrics()
        found = model.test_on_batch(batch, other, sample_weight=weights)
        np.testing.assert_allclose(found, [expected, 4 * 8], rtol=1e-4)
    model.reset_metrics()
    assert model.train_on_batch(batch, other)[1] == 4 * 8


def test_layers_say_their_arguments():
    layer = rt.layers.RemixerBlock(
        d_ff=6, num_mixing_heads=2, causal=True, max_length=4
    )
    again = rt.layers.RemixerBlock.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    x = np.ones([1, 4, 6], "float32")
    assert again(x, context=Context()).shape == (1, 4, 6)


def test_lora_by_keras_own_means(trained):
    model, batch = trained
    expected = np.asarray(model(batch))
    queries = [b.sublayer.query for b in model.decoder.blocks[::3]]
    for query in queries:
        query.enable_lora(2)
    np.testing.assert_allclose(np.asarray(model(batch)), expected, atol=1e-5)


# Kernels: query and value of two self-attentions in the encoder, and of two with two
# cross-attentions in the decoder; U and V of gMLP's six blocks.
@pytest.mark.slower
@pytest.mark.parametrize(
    ("name", "kernels"),
    [("t5_1_1_tiny", 12), ("gmlp_lm_tiny", 12)],
)
def test_only_adapters_are_trained(name, kernels, tmp_path):
    model, batch = make(name)
    before = model.predict(batch, verbose=0)
    whole = len(model.trainable_variables)
    model.enable_lora(2)
    np.testing.assert_array_equal(model.predict(batch, verbose=0), before)
    adapters = model.trainable_variables
    names = [v.name for v in adapters]
    assert sorted(names) == ["lora_kernel_a"] * kernels + ["lora_kernel_b"] * kernels
    assert all(2 in v.shape for v in adapters)
    kept = [(v, np.array(v)) for v in model.weights if v.name not in names]
    started = [np.array(v) for v in adapters]
    model.compile(rt.Adafactor(1e-2))
    history = model.fit(batch, batch_size=4, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    for variable, value in kept:
        np.testing.assert_array_equal(variable, value)
    for variable, value in zip(adapters, started, strict=True):
        assert np.any(np.array(variable) != value)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    found, expected = (m.predict(batch, verbose=0) for m in (loaded, model))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.max(np.abs(expected - before)) > 1e-3
    assert len(loaded.trainable_variables) == whole


def test_remixer_adapts_its_three_kernels():
    model, _ = make("remixer_tiny")
    model.enable_lora(2)
    paths = [v.path.split("/")[-3:-1] for v in model.trainable_variables]
    of_blocks = [kernel for owner, kernel in paths if owner == "remixer"]
    # Two blocks in the encoder and two in the decoder, A and B of each kernel.
    assert sorted(of_blocks) == ["wi_0"] * 8 + ["wi_1"] * 8 + ["wo"] * 8


def test_ranks_that_do_not_fit(trained):
    model, _ = trained
    count = len(model.trainable_variables)
    unbuilt = type(model).from_config(model.get_config())
    with pytest.raises(ValueError, match="is not built. Call build"):
        unbuilt.enable_lora(2)
    for rank in (-1, 1.5, "a", None, True, 10**6):
        with pytest.raises(ValueError, match="^rank must be.*Received: rank="):
            model.enable_lora(rank)
    assert len(model.trainable_variables) == count  # Nothing is frozen.
    model.enable_lora(1)
    with pytest.raises(ValueError, match="has LoRA adapters already"):
        model.enable_lora(1)
    stack = functools.partial(
        TransformerStack, {"shift": functools.partial(Shift, 0.5)}, 1
    )
    shifts = DecoderOnly(stack, vocab_size=11, d_model=8)
    shifts.build()
    with pytest.raises(ValueError, match="no attention, Remixer or gMLP block"):
        shifts.enable_lora(1)


def test_summary_shows_shapes(trained, capsys):
    model, _ = trained
    model.summary()
    shown = capsys.readouterr().out
    assert "encoder_decoder" in shown and "Total params" in shown


def test_a_notebook_shows_a_table(trained):
    model, _ = trained
    shown = model._repr_html_()
    assert f"<th>parameters</th><td>{model.count_params():,}</td>" in shown
    assert "EncoderDecoder" in shown and "float32" in shown
