"""A source of a set's own files, or of TensorFlow Datasets (TFDS)."""

import requests
import seqio

from remixer_tf.data.failures import how_to_fetch
from remixer_tf.errors import MissingFileError, UserError


class FilesOrTfds(seqio.TfdsDataSource):
    """A source of the files of a folder if one is named, else of TFDS.

    Args:
        dataset: str, the set's name in TFDS, with its version.
        folder, files: a `DataFolder`, and a `seqio.DataSource` of its files.
        splits: names of the splits; None for those of the files.
    """

    def __init__(self, dataset, folder, files, splits=None):
        super().__init__(dataset, splits=splits)
        self._folder = folder
        self._files = files

    @property
    def splits(self):
        """All splits of the set; files of some may be missing."""
        return tuple(self._splits or self._files.splits)

    def with_labels(self):
        """The same source without its test splits, whose examples have no labels."""
        splits = [name for name in self.splits if not name.startswith("test")]
        name = self.tfds_dataset.name
        return FilesOrTfds(name, self._folder, self._files, splits)

    def get_dataset(self, split="train", shuffle=True, seed=None, **kwargs):
        """Returns the split's raw examples, a `tf.data.Dataset`.

        Raises:
            FileNotFoundError: there is no such file; or no folder is named, TFDS lacks
                the set, and there is no network.
            ValueError: the file is not what the benchmark ships.
        """
        if self._reads_tfds():
            return super().get_dataset(split, shuffle, seed, **kwargs)
        if split not in self.splits:
            raise UserError(
                f"{self._folder.option} names files, of which whole splits are read: "
                f"{', '.join(self.splits)}. Received: {split!r}. max_examples takes "
                "the first of a split."
            )
        return self._files.get_dataset(split, shuffle=False, seed=seed)

    def num_input_examples(self, split):
        """Returns the number of raw examples, an int."""
        if self._reads_tfds():
            return super().num_input_examples(split)
        return int(self.get_dataset(split).cardinality())

    def list_shards(self, split):
        """Returns the names of the parts of a split; files have one."""
        return super().list_shards(split) if self._reads_tfds() else [split]

    def _reads_tfds(self):
        """Whether no folder is named. Then TFDS must have the set, or a network."""
        if self._folder.find()[0] is not None:
            return False
        builder = self.tfds_dataset.builder
        if builder.info.splits:
            return True
        try:  # TFDS itself would try for minutes.
            requests.head(next(iter(builder.url_infos)), timeout=10)
        except requests.RequestException as error:
            name = self.tfds_dataset.name
            raise MissingFileError(
                f"There is no {name} in {builder.data_dir}, and it cannot be "
                "downloaded. Name the folder of the set's own files with "
                f"--gin.{self._folder.option}=\"'FOLDER'\" or in "
                f"{self._folder.variable}. Or fetch it: {how_to_fetch(name)}"
            ) from error
        return True
