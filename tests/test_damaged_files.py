"""Foreign files that are damaged end in one clear line: hypothesis damages them.

None may be a traceback, take over five seconds or over 1 GB.
"""

import gzip
import json
import os
import resource
import time

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies

from remixer_tf.configuration import UserError, read_bindings
from remixer_tf.configuration.trust import check_run_configuration
from remixer_tf.data.image_sources import MAX_PIXELS, count_pixels, decode_image
from remixer_tf.data.vocabularies import sentencepiece_vocabulary
from remixer_tf.data.vocabulary_training import train_vocabulary
from remixer_tf.tasks.table_files import read_table
from remixer_tf.weights import formats
from tests.data.toy_images import png_header
from tests.weights.numpy_t5 import made_up_weights
from tests.weights.published import (
    write_hugging_face,
    write_mesh_tensorflow,
    write_t5x,
)

pytestmark = pytest.mark.slower

NUMBERS = [0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1]
WORDS = [b"{", b"[", b"]", b'"', b"null", b"-1", b"1e999", b"NaN", b"../", b"\0", b"@"]


@strategies.composite
def damages(draw, size):
    """What becomes of a file of so many bytes: a function."""
    steps = []
    for _ in range(draw(strategies.integers(1, 3))):
        place = draw(strategies.integers(0, size))
        length = draw(strategies.integers(0, 16))
        kind = draw(strategies.sampled_from(["cut", "flip", "number", "word", "twice"]))
        if kind == "cut":
            steps.append((place, draw(strategies.sampled_from([length, size])), b""))
        elif kind == "flip":
            bits = draw(strategies.binary(min_size=1, max_size=4))
            steps.append((place, len(bits), bits))
        elif kind == "number":
            number = draw(strategies.sampled_from(NUMBERS))
            width = draw(strategies.sampled_from([4, 8]))
            order = draw(strategies.sampled_from(["little", "big"]))
            number = (number % 2 ** (8 * width)).to_bytes(width, order)
            steps.append((place, len(number), number))
        elif kind == "word":
            word = draw(strategies.sampled_from(WORDS))
            times = draw(strategies.sampled_from([1, 1, 1, 20_000]))
            steps.append((place, length, word * times))
        else:
            steps.append((place, 0, None))
    return steps


def damage(data, steps):
    for place, length, new in steps:
        new = data[:place] if new is None else new
        data = data[:place] + new + data[place + length :]
    return data


MESH = "mesh/model.ckpt-1000.index"
MESH_DATA = MESH.replace(".index", ".data-00000-of-00001")


def read_weights(path):
    source = formats.read_source(path)
    for name in source.shapes:
        source.read(name)


def read_image(path):
    """As the signature of a classifier does."""
    data = tf.io.read_file(path)
    if 0 < count_pixels(data) <= MAX_PIXELS:
        decode_image(data)


def make_files(folder):
    """Writes whole files: {name: (path of what is damaged, reader, what it reads)}."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    weights = made_up_weights()
    write_hugging_face(folder / "t5", weights)
    settings = {"num_beams": 4, "length_penalty": 0.6, "max_new_tokens": 20}
    (folder / "t5" / "generation_config.json").write_text(json.dumps(settings))
    (folder / "t5x").mkdir()
    write_t5x(folder / "t5x" / "checkpoint", weights)
    (folder / "mesh").mkdir()
    write_mesh_tensorflow(folder / MESH.removesuffix(".index"), weights)
    rows = "".join(f"text {i}\t\u00e9{i}\n" for i in range(9))
    (folder / "a.tsv").write_text(f"text\tlabel\n{rows}")
    (folder / "a.csv").write_text('text,label\n"a, ""b""\nc",1\n' * 5)
    (folder / "a.jsonl").write_text('{"text": "a", "label": [1, {"b": null}]}\n' * 5)
    (folder / "a.tsv.gz").write_bytes(gzip.compress(f"text\tlabel\n{rows}".encode()))
    names = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    about = {"huggingface": json.dumps({"info": {"features": names}})}
    table = pyarrow.table({"text": ["a", "b"], "label": [1, 0]})
    table = table.replace_schema_metadata(about)
    parquet.write_table(table, folder / "a.parquet")
    (folder / "hub").mkdir()
    with pyarrow.ipc.new_stream(folder / "hub" / "a.arrow", table.schema) as file:
        file.write_table(table)
    state = {"_data_files": [{"filename": "a.arrow"}]}
    (folder / "hub" / "state.json").write_text(json.dumps(state))
    (folder / "run.gin").write_text(
        "import seqio\ntrain.train_steps = 5\nA = [1, {'b': @c/Dense(), 'd': %E}]\n" * 3
    )
    image = tf.cast(np.arange(300).reshape(10, 10, 3) % 255, tf.uint8)
    (folder / "a.jpeg").write_bytes(tf.io.encode_jpeg(image).numpy())
    (folder / "a.png").write_bytes(tf.io.encode_png(image).numpy())
    (folder / "b.png").write_bytes(png_header(10, 10))
    train_vocabulary(["a b c d"] * 9, str(folder / "a.model"), model_type="word")

    def vocabulary(path):
        copy = f"{path}.{time.monotonic_ns()}"  # seqio reads a file of one name once.
        os.rename(path, copy)
        try:
            sentencepiece_vocabulary(copy)
        finally:
            os.unlink(copy)

    def run_file(path):
        check_run_configuration(path)
        read_bindings(path)

    readers = {
        "t5/config.json": (read_weights, "t5"),
        "t5/generation_config.json": (read_weights, "t5"),
        "t5/model.safetensors": (read_weights, "t5"),
        "t5x/checkpoint": (read_weights, "t5x"),
        MESH: (read_weights, "mesh"),
        MESH_DATA: (read_weights, "mesh"),
        "hub/state.json": (read_table, "hub"),
        "hub/a.arrow": (read_table, "hub"),
        "run.gin": (run_file, None),
        "a.model": (vocabulary, None),
    }
    readers |= {f"a.{end}": (read_image, None) for end in ("png", "jpeg")}
    readers["b.png"] = (read_image, None)
    for end in ("tsv", "csv", "jsonl", "tsv.gz", "parquet"):
        readers[f"a.{end}"] = (read_table, None)
    return {
        name: (folder / name, read, str(folder / (other or name)))
        for name, (read, other) in readers.items()
    }


NAMES = [
    *(MESH, MESH_DATA),
    *("t5/config.json", "t5/generation_config.json", "t5/model.safetensors"),
    *("t5x/checkpoint", "hub/state.json", "hub/a.arrow", "run.gin", "a.model"),
    *("a.png", "a.jpeg", "b.png", "a.tsv", "a.csv", "a.jsonl", "a.tsv.gz", "a.parquet"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_one_clear_line(files, name):
    path, read, of = files[name]
    whole = path.read_bytes()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = {"read": 0, "refused": 0}

    @hypothesis.settings(
        max_examples=1_300,
        deadline=5_000,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(damages(len(whole)))
    def try_one(steps):
        path.write_bytes(damage(whole, steps))
        try:
            read(of)
            outcomes["read"] += 1
        except Exception as error:
            # A request with a damaged image fails in the graph: the server answers so.
            in_graph = read is read_image and isinstance(error, tf.errors.OpError)
            if not (in_graph or isinstance(error, UserError)):
                raise
            message = str(error)
            assert message and len(message) < 2_000, message[:3_000]
            outcomes["refused"] += 1

    try:
        try_one()
    finally:
        path.write_bytes(whole)
    assert sum(outcomes.values()) >= 1_250
    # Of rows of text the damaged ones have a problem of their own.
    assert outcomes["refused"] > 0 or name.endswith(".jsonl")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 1e6  # kilobytes
