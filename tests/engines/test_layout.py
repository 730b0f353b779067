"""How a model's variables are split over a mesh."""

import functools
import math
import pathlib
import types

import keras
import pytest

from remixer_tf import configuration
from remixer_tf.configured import layout_of
from remixer_tf.engines.jax.layout import Layout, declare_run, device_memory
from remixer_tf.layers import PositionWise
from remixer_tf.layers.axes import make_named
from remixer_tf.models import MaskedLMHead
from remixer_tf.optimizers import Adafactor
from tests.models.tiny import tiny_decoder, tiny_encoder, tiny_model
from tests.settings import value_of

T5_RULES = (
    "ensemble:ensemble,batch:batch,d_ff:model,heads:model,vocab:model,experts:batch"
)
LAYOUTS = pathlib.Path(configuration.gin_folder()) / "layouts"


def variable(path, shape, *axes):
    """A stand-in for a `keras.Variable` with named axes."""
    return types.SimpleNamespace(path=path, shape=shape, axes=axes)


@pytest.mark.parametrize(
    "text", ["data:4,model:2", " data:4 model:2", "data:4;model:2."]
)
def test_the_text_is_mesh_tensorflows(text):
    layout = Layout(text, T5_RULES.replace("batch:batch", "batch:data"))
    assert list(layout.axes.items()) == [("data", 4), ("model", 2)]
    assert layout.num_devices == 8
    assert layout.batch_axes == ("data",) and layout.num_batch_parts == 4
    table = variable("embeddings", (32, 8), "vocab", "d_model")
    assert layout.partition(table) == ("model", None)
    # The mesh has no axis "batch".
    wi = variable("wi", (4, 8, 32), "experts", "d_model", "d_ff")
    assert layout.partition(wi) == (None, None, "model")


def test_one_device_needs_no_text():
    layout = Layout()
    assert layout.axes == {} and layout.num_devices == layout.num_batch_parts == 1
    assert layout.batch_axes == ()
    assert layout.partition(variable("wi", (4, 8), "d_model", "d_ff")) == (None, None)


def test_a_batch_may_be_split_over_two_axes():
    layout = Layout("pod:2,data:4", "batch:pod,batch:data,d_model:data")
    assert layout.batch_axes == ("pod", "data") and layout.num_batch_parts == 8
    logits = variable("logits", (8, 32), "d_model", "vocab")
    assert layout.partition(logits) == ("data", None)


@pytest.mark.parametrize(
    "mesh_shape, layout_rules, message",
    [
        ("data=4", "", "pairs such as 'data:4,model:2'. Received: 'data=4'"),
        ("data:4:2", "", "Received: 'data:4:2'"),
        ("data:4", "batch:", "layout_rules is a list of pairs"),
        (None, "", "mesh_shape is a text"),
        ("data:0", "", "a positive integer. Received: data:0"),
        ("data:two", "", "a positive integer. Received: data:two"),
        ("data:2,data:4", "", "the axis 'data' twice"),
        (
            "data:2",
            "batch:data,d_fff:data",
            "'d_fff', which no tensor has.*d_model, d_",
        ),
        ("data:2,model:2", "d_ff:data,d_ff:model", "two rules for 'd_ff'"),
        ("data:2", "batch:data,batch:data", "two rules for 'batch'"),
    ],
)
def test_a_wrong_text_is_refused(mesh_shape, layout_rules, message):
    with pytest.raises(ValueError, match=message):
        Layout(mesh_shape, layout_rules)


def test_sizes_have_to_divide():
    layout = Layout("model:4", "heads:model,d_ff:model")
    with pytest.raises(ValueError, match="d_ff:model splits d_ff=6 of wo over 4"):
        layout.partition(variable("wo", (6, 8), "d_ff", "d_model"))
    # Heads are what is split, and not their channels.
    query = variable("query", (8, 6 * 64), "d_model", "heads")
    assert layout.partition(query, num_heads=12) == (None, "model")
    with pytest.raises(ValueError, match="splits heads=6 of query over 4"):
        layout.partition(query, num_heads=6)


def test_an_axis_splits_one_dimension_of_a_tensor():
    layout = Layout("model:2", "d_model:model,d_ff:model")
    with pytest.raises(ValueError, match="d_model:model and d_ff:model .* of wi"):
        layout.partition(variable("wi", (8, 32), "d_model", "d_ff"))


def test_a_layer_of_ones_own_is_split_by_its_names():
    class Mine(PositionWise):
        def build(self, input_shape):
            shape, axes = (input_shape[-1], 6), ("d_model", "d_ff")
            self.add_weight(name="named", shape=shape, axes=axes)
            self.add_weight(name="unnamed", shape=shape)

    mine = Mine(name="mine")
    mine.build((None, None, 8))
    named, unnamed = mine.weights
    layout = Layout("data:2,model:2", "d_model:data,d_ff:model")
    assert layout.partition(named) == ("data", "model")
    assert layout.partition(unnamed) == (None, None)


RULES = "vocab:v,d_model:d,d_ff:f,heads:h,experts:e,mixing_heads:m"
# An axis of the mesh for each dimension; of all variables with these last names.
SPLITS = {
    "token_embedding/embeddings": {("v", "d")},
    "logits/kernel": {("d", "v")},
    "positions/embeddings": {(None, "d")},
    "rel_embedding": {("h", None)},
    "query/kernel": {("d", "h"), ("d", None)},  # aMLP's one head is whole.
    "query/bias": {("h",), (None,)},
    "out/kernel": {("h", "d"), (None, "f")},
    "out/bias": {(None,), ("f",)},
    "wi/kernel": {("d", "f")},
    "wi/bias": {("f",)},
    "wi_0/kernel": {("d", "f")},
    "wo/kernel": {("f", "d")},
    "wo/bias": {(None,)},
    "wi": {("e", "d", "f")},
    "token_experts/wo": {("e", "f", "d")},
    "router/kernel": {(None, None)},
    "token_mixing/wi_0": {(None, None)},
    "alpha_logit": {("f",)},
    "alpha_gate/kernel": {(None, "f")},
    "mixing_matrix": {("m", None), ("m", None, None)},
    "spatial_bias": {(None,), ("m", None)},
    "gamma": {(None,)},
    "scale": {(None,)},
    "transform/kernel": {("d", None)},
    "head/bias": {("v",)},
    "seed_generator_state": {(None,)},
}


def test_what_a_layout_splits():
    """All variables of all gin files: `tests.configuration.test_gin_files`."""
    head = functools.partial(MaskedLMHead, bias_size=40, mlm_transform=True)
    models = [
        tiny_model("mixer"),
        tiny_encoder("bert", head),
        tiny_encoder("amlp"),
        tiny_decoder("switch", tied_logits=False),
        tiny_decoder("smlp"),
        *(
            tiny_model("remixer", dropout_rate=0.1, remixer={"alpha": alpha})
            for alpha in ("learned_vector", "gated")
        ),
    ]
    layout = Layout("v:1,d:1,f:1,h:1,e:1,m:1", RULES)
    splits = {
        name: {
            layout.partition(v)
            for model in models
            for v in model.variables
            if v.path.endswith(f"/{name}")
        }
        for name in SPLITS
    }
    assert splits == SPLITS


@pytest.fixture(scope="module")
def bert():
    return tiny_encoder("bert")


def test_heads_are_the_layers(bert):
    """Two heads of four channels."""
    layout = Layout("data:2,model:2", "heads:model,d_model:data")
    kernels = {
        path.rpartition("/layer_0_self_attention/")[2]: partition
        for path, partition in layout.partitions(bert).items()
    }
    assert kernels["self_attention/key/kernel"] == ("data", "model")
    assert kernels["self_attention/key/bias"] == ("model",)
    assert kernels["self_attention/out/kernel"] == ("model", "data")
    with pytest.raises(ValueError, match="heads=2 of .* over 4"):
        Layout("model:4", "heads:model").partitions(bert)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: Adafactor(beta_1=0.9, min_dim_size_to_factor=2),
        lambda: Adafactor(),
        lambda: keras.optimizers.AdamW(use_ema=True),
        lambda: keras.optimizers.SGD(momentum=0.9),
    ],
)
def test_slots_follow_their_variables(bert, optimizer):
    layout = Layout("data:2,model:2", "heads:model,d_ff:model,d_model:data")

    made = optimizer()
    made.build(bert.trainable_variables)
    partitions = layout.partitions(bert)
    of_slot = layout.slot_partition(bert)
    slots = {slot.path.partition("/")[2]: of_slot(slot) for slot in made.variables}
    assert slots.pop("iteration") == slots.pop("learning_rate") == ()
    seen = set()
    for variable in bert.trainable_variables:
        name = variable.path.replace("/", "_")
        partition = partitions[variable.path]
        for slot, split in list(slots.items()):
            kind = slot.removeprefix(f"{name}_")
            if kind == "second_moment_row":  # Lacks the largest axis.
                largest = max(range(2), key=lambda axis: (variable.shape[axis], -axis))
                assert split == (partition[1 - largest],)
            elif kind == "second_moment_column":
                largest = max(range(2), key=lambda axis: (variable.shape[axis], -axis))
                assert split == (partition[largest],)
            elif slot.startswith(f"{name}_"):
                assert split == partition
            else:
                continue
            seen.add(kind)
            del slots[slot]
    assert not slots and seen


def test_a_slot_is_of_the_longest_name():
    """MLP-Mixer has wi and wi_bias."""
    variables = [
        variable("m/wi", (8, 4), None, None),
        variable("m/wi_bias", (8, 1), None, None),
        variable("m/wo/kernel", (6, 4), "d_ff", "d_model"),
    ]
    model = types.SimpleNamespace(
        variables=variables,
        trainable_variables=variables,
        _flatten_layers=lambda **_: [],
    )
    slots = [
        types.SimpleNamespace(
            path=f"sgd/{v.path.replace('/', '_')}_momentum", shape=v.shape
        )
        for v in variables
    ]
    layout = Layout("model:2", "d_ff:model")
    partitions = map(layout.slot_partition(model), slots)
    assert [*partitions] == [(None, None), (None, None), ("model", None)]


def test_a_slot_of_another_shape_is_split_by_its_own_names(bert):
    class Odd(keras.optimizers.SGD):
        def build(self, variables):
            super().build(variables)
            name = variables[0].path.replace("/", "_")
            for slot, axis in ("row", "d_model"), ("column", "vocab"):
                make_named(self.add_variable, (axis,), (8,), name=f"{name}_{slot}")
            self.add_variable((8,), name=f"{name}_unnamed")

    odd = Odd()
    odd.build(bert.trainable_variables)
    layout = Layout("model:2", "vocab:model")
    partitions = map(layout.slot_partition(bert), odd.variables[-3:])
    assert [*partitions] == [(None,), ("model",), (None,)]


def test_memory_is_of_the_parts(bert):
    optimizer = Adafactor()  # Factors nothing as small as this.
    optimizer.build(bert.trainable_variables)
    size = 4 * sum(math.prod(v.shape) for v in bert.trainable_variables)
    seeds = sum(8 * math.prod(v.shape) for v in bert.non_trainable_variables)
    whole = device_memory(Layout("data:2", "batch:data"), bert, optimizer)
    scalars = whole.optimizer - size  # Step and rate.
    assert whole == (size + seeds, size, size + scalars) and 8 <= scalars <= 12
    table = 4 * 40 * 8  # The embedding, [40, 8].
    parts = device_memory(Layout("model:4", "vocab:model"), bert, optimizer)
    assert whole.weights - parts.weights == table * 3 // 4
    assert whole.optimizer - parts.optimizer == table * 3 // 4


@pytest.mark.usefixtures("clear_gin")
def test_each_preset_is_what_its_name_says():
    files = {path.stem for path in LAYOUTS.glob("*.gin")} - {"t5", "fully_sharded"}
    assert len(files) == 6
    for file in files:
        settings = configuration.read([f"layouts/{file}.gin"], [], complete=False)
        layout = layout_of(settings)
        words = file.split("_")
        axes = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        assert layout.axes == axes and layout.num_devices in (8, 64, 256)
        assert layout.batch_axes == ("data",)
        wi = variable("wi", (4096, 10240), "d_model", "d_ff")
        assert layout.partition(wi) == (None, "model" if "model" in axes else None)
        files = [f"layouts/{file}.gin", "layouts/fully_sharded.gin"]
        settings = configuration.read(files, [], complete=False)
        sharded = layout_of(settings)
        assert sharded.axes == axes and sharded.partition(wi)[0] == "data"


@pytest.mark.slower
@pytest.mark.usefixtures("clear_gin")
@pytest.mark.parametrize("data", [1, pytest.param(8, marks=pytest.mark.slower)])
def test_what_64_devices_would_hold_of_xxl(data):
    """By hand: 24 + 24 layers, d_model 4096, 64 heads of 64, d_ff 10240.

    `data`: the parts of d_model, 8 if the parameters are fully sharded.
    """
    files = ["models/t5_1_1_xxl", "runs/mini_cogs", "layouts/data_8_model_8"]
    files += ["layouts/fully_sharded"] * (data == 8)
    files = [f"{file}.gin" for file in files]
    settings = configuration.read(files, ["VOCAB_SIZE = 32128"], complete=False)
    attention, feed_forward = 4 * 4096 * 4096, 3 * 4096 * 10240
    layers = 24 * (attention + feed_forward) + 24 * (2 * attention + feed_forward)
    biases = 2 * 64 * 32 // 8
    norms = (24 * 2 + 24 * 3 + 2) * 4096
    weights = (layers + 2 * 32128 * 4096) // (8 * data) + biases + norms
    # Of each matrix a row and a column.
    d_model = 4096 // data
    slots = 24 * (3 * 4 * (d_model + 4096 // 8) + 2 * 3 * (d_model + 10240 // 8))
    slots += 2 * (d_model + 32128 // 8) + biases + norms
    memory = device_memory(
        layout_of(settings),
        *declare_run(
            value_of(settings, "Run.model"),
            value_of(settings, "train.optimizer"),
            "float32",
        ),
    )
    assert memory[:2] == (4 * weights, 4 * weights)
    # The step, int64 on TensorFlow; the rate is a schedule's.
    step = 8 if keras.backend.backend() == "tensorflow" else 4
    assert memory.optimizer == 4 * slots + step


def test_an_axis_that_splits_nothing():
    """Its devices would all do the same, in silence."""
    with pytest.raises(ValueError, match="'dp' of 8 devices splits nothing.*batch:dp"):
        Layout("dp:8", "batch:data")
    Layout("dp:1,data:8", "batch:data")


def test_an_axis_that_splits_nothing_of_a_model(bert):
    with pytest.raises(ValueError, match="'dp' of 8 devices splits nothing.*experts:d"):
        Layout("dp:8,data:2", "experts:dp,batch:data").partitions(bert)
    Layout("dp:8,one:1", "batch:dp,ensemble:one").partitions(bert)
