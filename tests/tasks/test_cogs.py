import functools
import gzip
import hashlib
import http.server
import os
import pathlib
import threading

import numpy as np
import pytest
import seqio

from remixer_tf.tasks import cogs
from remixer_tf.tasks.text_metrics import TargetWithType

DEV = (
    "A wug ran .\twug ( x _ 1 ) AND run . agent ( x _ 2 , x _ 1 )\tin_distribution\n"
    "Zed\tZed\tprimitive\n"
)
GEN = "A dax  sat .\tdax ( x _ 1 )\tcp_recursion\nBo sat .\tsit\tpassive_to_active\n"


@pytest.fixture(autouse=True)
def no_folder(monkeypatch, tmp_path):
    """No folder is named."""
    monkeypatch.delenv("REMIXER_TF_COGS_DIR", raising=False)
    monkeypatch.delenv("REMIXER_TF_DATA", raising=False)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    yield
    cogs.data_folder.set(None)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "dev.tsv").write_text(DEV)
    (folder / "gen.tsv.gz").write_bytes(gzip.compress(GEN.encode()))
    monkeypatch.setenv("REMIXER_TF_COGS_DIR", str(folder))
    return folder


def read(split):
    task = seqio.get_mixture_or_task("cogs")
    return list(task.get_dataset(None, split=split, shuffle=False).as_numpy_iterator())


def release_of_gen():
    return cogs.describe_release(cogs.read_bytes(cogs.find_file("gen")))


def byte_ids(text):
    return [byte + 3 for byte in text.encode()] + [1]


def test_examples(folder):
    expected = [
        ("cogs: A wug ran .", DEV.split("\t")[1], "in_distribution"),
        ("cogs: Zed", "Zed", "primitive"),
    ]
    examples = read("dev")
    assert len(examples) == 2
    for example, (inputs, targets, type_) in zip(examples, expected, strict=True):
        assert {k: np.asarray(v).tolist() for k, v in example.items()} == {
            "inputs": byte_ids(inputs),
            "inputs_pretokenized": inputs.encode(),
            "targets": byte_ids(targets),
            "targets_pretokenized": targets.encode(),
            "type": type_.encode(),
        }


def test_shuffled_reading_is_repeatable(folder):
    (folder / "dev.tsv").write_text("".join(f"a{i}\tb\tc\n" for i in range(50)))
    task = seqio.get_mixture_or_task("cogs")
    first, second, third = (
        [
            example["inputs_pretokenized"]
            for example in task.get_dataset(
                None, split="dev", shuffle=True, seed=seed
            ).as_numpy_iterator()
        ]
        for seed in (1, 1, 2)
    )
    assert first == second != third
    assert sorted(first) == sorted(third)
    assert len(first) == 50


def test_compressed_files_are_read(folder):
    assert [example["type"] for example in read("gen")] == [
        b"cp_recursion",
        b"passive_to_active",
    ]


def test_task_scores_by_type_through_seqio(folder):
    task = seqio.get_mixture_or_task("cogs")
    evaluator = seqio.Evaluator(
        "cogs", seqio.EncDecFeatureConverter(pack=False), eval_split="gen"
    )
    outputs = ["dax (  x _ 1 )", "stand"]

    def predict(dataset):
        ids = [byte_ids(text) + [0] * (20 - len(text)) for text in outputs]
        return [(index, ids[index]) for index, _ in dataset.as_numpy_iterator()]

    scores, _ = evaluator.evaluate(compute_metrics=True, predict_fn=predict)
    assert scores.result()["cogs"] == {
        "exact_match": 50.0,
        "exact_match/lexical": 0.0,
        "exact_match/structural": 100.0,
        "exact_match/type/cp_recursion": 100.0,
        "exact_match/type/passive_to_active": 0.0,
    }
    example = read("gen")[0]
    assert task.postprocess_fn(
        "dax ( x _ 1 )", example=example, is_target=True
    ) == TargetWithType("dax ( x _ 1 )", "cp_recursion")


def test_the_folder_is_found_in_this_order(tmp_path, monkeypatch):
    for name in ("data/cogs", "named", "set"):
        (tmp_path / name).mkdir(parents=True)
    assert cogs.data_folder.find() == (None, None)
    monkeypatch.setenv("REMIXER_TF_DATA", str(tmp_path / "named"))
    assert cogs.data_folder.find() == (None, None)
    monkeypatch.setenv("REMIXER_TF_DATA", str(tmp_path / "data"))
    assert cogs.data_folder.find()[0] == str(tmp_path / "data/cogs")
    monkeypatch.setenv("REMIXER_TF_COGS_DIR", str(tmp_path / "named"))
    assert cogs.data_folder.find()[0] == str(tmp_path / "named")
    cogs.data_folder.set(str(tmp_path / "set"))
    assert cogs.data_folder.find()[0] == str(tmp_path / "set")


def test_a_folder_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("REMIXER_TF_COGS_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="REMIXER_TF_COGS_DIR.*nowhere"):
        read("dev")
    cogs.data_folder.set(str(tmp_path / "elsewhere"))
    with pytest.raises(FileNotFoundError, match="cogs.directory.*elsewhere"):
        read("dev")


def test_the_folder_of_all_data_may_have_a_tilde_and_must_be_there(
    tmp_path, monkeypatch
):
    (tmp_path / "data/cogs").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("REMIXER_TF_DATA", "~/data")
    assert cogs.data_folder.find()[0] == str(tmp_path / "data/cogs")
    monkeypatch.setenv("REMIXER_TF_DATA", "~/nowhere")
    with pytest.raises(FileNotFoundError, match="REMIXER_TF_DATA.*nowhere"):
        read("dev")


def test_a_missing_file_tells_what_is_there(folder):
    with pytest.raises(FileNotFoundError, match=r"train\.tsv.*dev\.tsv, gen\.tsv\.gz"):
        read("train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"dev\.tsv is empty"),
        (b"\n", r"dev\.tsv is empty"),
        (b"a\tb\tc\na b\n", r"dev\.tsv, line 2: .*Received 1: 'a b'"),
        (b"a\tb\tc\na\tb\n", r"line 2: .*Received 2"),
        (b"a\tb\tc\td\n", r"line 1: .*Received 4"),
        (b"a\t \tc\n", r"line 1: .*none of them empty"),
        (b"a\tb\tc\n\na\tb\tc\n", r"line 2: .*Received 1"),
        (b"a\tb\tc\nd\xff\tb\tc\n", r"dev\.tsv, line 2: not valid UTF-8.*byte 1"),
    ],
)
def test_bad_files_name_the_file_and_line(folder, content, message):
    (folder / "dev.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read("dev")


def test_every_row_is_kept():
    rows = [("a b", "c", "t"), ("d", "e", "t")]
    for data in (b"a b\tc\tt\nd\te\tt\n", b"a b\tc\tt\r\nd\te\tt"):
        assert cogs.parse_rows(data, "f") == rows


def test_a_broken_gzip_file(folder):
    whole = (folder / "gen.tsv.gz").read_bytes()
    for broken in (whole[:-10], b"not gzip"):
        (folder / "gen.tsv.gz").write_bytes(broken)
        with pytest.raises(ValueError, match=r"gen\.tsv\.gz cannot be decompressed"):
            read("gen")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder served as the authors' repository is, with DEV's checksum known."""
    server = tmp_path / "server"
    server.mkdir()
    (server / "dev.tsv").write_text(DEV)
    checksum = hashlib.sha256(DEV.encode()).hexdigest()
    monkeypatch.setitem(cogs.CHECKSUMS, "dev", checksum)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(server)
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{serving.server_port}/{{split}}.tsv"
        monkeypatch.setattr(cogs.download, "__defaults__", (url,))
        yield server
        serving.shutdown()


def test_download_checks_and_keeps_the_file(server):
    path = cogs.download("dev")
    assert pathlib.Path(path).read_text() == DEV
    assert path.startswith(os.environ["TFDS_DATA_DIR"])
    (server / "dev.tsv").unlink()
    assert cogs.download("dev") == path


def test_download_refuses_another_file(server):
    (server / "dev.tsv").write_text(DEV + "A row more .\tmore\tx\n")
    with pytest.raises(OSError, match="checksum") as error:
        cogs.download("dev")
    assert "REMIXER_TF_COGS_DIR" in str(error.value)


def test_without_folder_the_task_downloads_or_tells_both_ways(server):
    assert len(read("dev")) == 2
    with pytest.raises(OSError) as error:
        read("train")
    for text in ("train.tsv", "REMIXER_TF_COGS_DIR", "can be reached", "404"):
        assert text in str(error.value)


def test_the_release_that_is_read_is_logged(folder, caplog):
    read("gen")
    assert "gen.tsv.gz is of the release unknown (sha256" in caplog.text


def test_an_unknown_release_is_called_unknown(folder):
    sha256 = hashlib.sha256(GEN.encode()).hexdigest()
    assert release_of_gen() == {"release": "unknown", "sha256": sha256}


def test_types_are_18_lexical_and_3_structural():
    kinds = list(cogs.GEN_TYPES.values())
    assert kinds.count("lexical") == 18
    assert kinds.count("structural") == 3


@pytest.mark.real_data
class TestRealFiles:
    @pytest.fixture(autouse=True)
    def real_folder(self, no_folder, real_data_dir):
        cogs.data_folder.set(str(real_data_dir / "cogs"))

    @pytest.mark.parametrize(
        ("split", "count"),
        [("train", 24_155), ("dev", 3_000), ("test", 3_000), ("gen", 21_000)],
    )
    def test_counts(self, split, count):
        rows = cogs.read_rows(split)
        assert len(rows) == count
        assert all(row[0].startswith("cogs: ") for row in rows)

    @pytest.mark.parametrize("split", ["train", "dev", "test"])
    def test_checksums_are_those_of_the_download(self, split):
        data = cogs.read_bytes(cogs.find_file(split))
        assert hashlib.sha256(data).hexdigest() == cogs.CHECKSUMS[split]

    def test_gen_is_a_known_release_and_has_1000_of_each_type(self):
        assert release_of_gen()["release"] in ("2020", "2022-09-13")
        types = [row[2] for row in cogs.read_rows("gen")]
        assert {name: types.count(name) for name in set(types)} == (
            dict.fromkeys(cogs.GEN_TYPES, 1_000)
        )

    def test_the_corrected_release_is_the_original_with_51_other_roles(self):
        """The download's checksum of gen, derived from the original's rows."""
        if release_of_gen()["release"] != "2020":
            pytest.skip("the folder holds the corrected release already")
        path = pathlib.Path(cogs.find_file("gen"))
        lines = cogs.read_bytes(str(path)).decode().split("\n")
        changed = path.with_name("gen_2022_fix_lines.txt").read_text().split()
        assert len(changed) == 51
        for number in map(int, changed):
            # The last agent of the sentence is the subject of the verb that undergoes.
            head, tail = lines[number - 1].rsplit(" . agent (", 1)
            lines[number - 1] = f"{head} . theme ({tail}"
        data = "\n".join(lines).encode()
        assert cogs.describe_release(data)["release"] == "2022-09-13"
