"""Questions and answers in files of one's own."""

import gzip

import pytest
import seqio

from remixer_tf import configuration
from remixer_tf.evaluation.loss import LossEvaluation
from remixer_tf.tasks import tsv_files


@pytest.fixture
def folder(tmp_path):
    tsv_files.data_folder.set(str(tmp_path))
    yield tmp_path
    tsv_files.data_folder.set(None)


def test_examples(folder):
    (folder / "train.tsv").write_text("wie geht es?\thow are you?\nja\tyes\n")
    (folder / "test.tsv.gz").write_bytes(gzip.compress("é\te\n".encode()))
    task = seqio.get_mixture_or_task("tsv_files")
    examples = task.get_dataset(split="train", shuffle=False).as_numpy_iterator()
    vocabulary = task.output_features["inputs"].vocabulary
    second = list(examples)[1]
    assert second["inputs"].tolist() == [*vocabulary.encode("ja"), 1]
    assert second["targets"].tolist() == [*vocabulary.encode("yes"), 1]
    assert tsv_files.read_rows("test") == [("é", "e")]


def test_errors(folder):
    (folder / "train.tsv").write_text("one\ttwo\nno tab\n")
    with pytest.raises(ValueError, match="line 2: expected a question") as error:
        tsv_files.read_rows("train")
    assert configuration.is_users_error(error.value)
    with pytest.raises(FileNotFoundError, match="no test.tsv or test.tsv.gz in"):
        tsv_files.read_rows("test")


def test_splits_without_a_file_are_left_out_unless_asked_for(folder, caplog):
    lengths = {"inputs": 4, "targets": 4}
    with pytest.raises(FileNotFoundError, match="no validation.tsv"):
        LossEvaluation("tsv_files", feature_lengths=lengths).parts()
    (folder / "validation.tsv").write_text("a\tb\n")
    evaluation = LossEvaluation("tsv_files", feature_lengths=lengths)
    assert evaluation.parts() == [("tsv_files", "validation")]
    assert "tsv_files test is left out: There is no test.tsv" in caplog.text
    asked = LossEvaluation("tsv_files", feature_lengths=lengths, splits=["test"])
    with pytest.raises(FileNotFoundError, match="no test.tsv"):
        asked.check(str(folder))
