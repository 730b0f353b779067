"""Finds, downloads and reads the files of COGS.

Kim and Linzen, "COGS: A Compositional Generalization Challenge Based on Semantic
Interpretation", EMNLP 2020. A split is a file without header, its three columns
separated by tabs: sentence, logical form, type. It is called train.tsv, dev.tsv,
test.tsv or gen.tsv, or the same with .gz. The folder is, in this order:

1. the one that gin names (`cogs.directory`), or `set_directory`;
2. the environment variable REMIXER_TF_COGS_DIR;
3. the folder cogs in the one that REMIXER_TF_DATA names, if it is there;
4. none: the files are downloaded from the authors' repository.
"""

import functools
import hashlib
import os

import tensorflow as tf
from absl import logging

from remixer_tf.errors import StorageError, UserError
from remixer_tf.tasks.folders import DataFolder, read_bytes

# github.com/najoungkim/COGS at its last commit, with the generalisation set as it was
# corrected on 2022-09-13.
URL = (
    "https://raw.githubusercontent.com/najoungkim/COGS/"
    "165a7b669eade971fa47bf568a2e51925360fed8/data/{split}.tsv"
)
# Each file's size in bytes, and its SHA-256.
CHECKSUMS = {
    "train": (
        4146574,
        "220b3804b562c0156ee986eff1bdd15c27e52142549362a64f57baf86e304c78",
    ),
    "dev": (
        522121,
        "ab66388a309c7ac1ad210c781a6a0ce12281a9ef24619a12422a752cef61bc21",
    ),
    "test": (
        521111,
        "68f8e51e9f6d9cd22d64efe68dd21d7ea5ba327e9a2359481030161aea757035",
    ),
    "gen": (
        5532102,
        "d013d9eee0bafc153f8decc85f42814ac97260f84964d980e1e2b84577b82361",
    ),
}
SPLITS = tuple(CHECKSUMS)
# The two releases differ in 51 rows of obj_pp_to_subj_pp: agent became theme.
GEN_RELEASES = {
    "410369d993e7cf3af9bb75835a77b1a332b56e60985a8bf1e7d75c30e91d4828": "2020",
    CHECKSUMS["gen"][1]: "2022-09-13",
}

data_folder = DataFolder("cogs", "REMIXER_TF_COGS_DIR", subfolder="cogs")


def find_file(split):
    """Returns the path of a split's file, which is downloaded if no folder is named.

    Raises:
        FileNotFoundError: the named folder does not exist or lacks the file.
        OSError: no folder is named, and the download failed.
    """
    if data_folder.find() == (None, None):
        return download(split)
    return data_folder.find_file(f"{split}.tsv")


def download(split, url=URL):
    """Downloads a split's file once, checks it, and returns its path.

    It is kept in TFDS_DATA_DIR/downloads/cogs, by default in ~/tensorflow_datasets.
    `url` has `{split}` in it.

    Raises:
        OSError: the file cannot be reached or its checksum is wrong. The message
            tells both ways to provide COGS.
    """
    data_dir = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    downloads = os.path.join(os.path.expanduser(data_dir), "downloads", "cogs")
    path = os.path.join(downloads, f"{split}.tsv")
    if tf.io.gfile.exists(path):
        return path
    import requests
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import checksums

    url = url.format(split=split)
    known = checksums.UrlInfo(*CHECKSUMS[split], f"{split}.tsv")
    try:
        if url.startswith("http"):  # tfds would try for three minutes
            requests.head(url, timeout=10).raise_for_status()
        manager = tfds.download.DownloadManager(
            download_dir=downloads,
            url_infos={url: known},
            force_checksums_validation=True,
        )
        tf.io.gfile.rename(os.fspath(manager.download(url)), path, overwrite=True)
        return path
    except Exception as error:  # whatever the network, the disk or tfds raise
        raise StorageError(
            f"COGS: no folder is named, and downloading {split}.tsv failed: {error}\n"
            "Either copy train.tsv, dev.tsv, test.tsv and gen.tsv from the folder data "
            "of https://github.com/najoungkim/COGS and name their folder with "
            "REMIXER_TF_COGS_DIR or with --gin.cogs.directory=FOLDER; or run "
            f"once where {url} can be reached."
        ) from error


def parse_rows(data, path):
    """Returns every row of a file's bytes: (sentence, logical form, type).

    Raises:
        ValueError: the file is empty, or a line is not UTF-8 or not three columns,
            none of them empty. The message names the file, `path`, and the line.
    """
    lines = data.removesuffix(b"\n").split(b"\n")
    if lines == [b""]:
        raise UserError(f"{path} is empty. Expected: sentence, tab, logical form, ...")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            text = line.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}, line {number}: not valid UTF-8 ({error.reason} at byte "
                f"{error.start} of the line). Save the file as UTF-8."
            ) from error
        row = tuple(text.split("\t"))
        if len(row) != 3 or not all(column.strip() for column in row):
            shown = repr(text) if len(repr(text)) <= 80 else f"{repr(text)[:80]}..."
            raise UserError(
                f"{path}, line {number}: expected three columns separated by tabs "
                "(sentence, logical form, type), none of them empty. Received "
                f"{len(row)}: {shown}."
            )
        rows.append(row)
    return rows


def read_split(split):
    """Returns the rows of a split; logs the file, and of gen also the release."""
    path = find_file(split)
    data = read_bytes(path)
    rows = parse_rows(data, path)
    logging.info("COGS %s: %d rows of %s", split, len(rows), path)
    if split == "gen":
        release = describe_release(data)
        # At a level that is seen by default: results on two releases differ.
        _warn_once(
            f"COGS gen: {path} is of the release {release['release']} "
            f"(sha256 {release['sha256']}, git blob {release['git_blob']})"
        )
    return rows


_warn_once = functools.cache(logging.warning)


def describe_release(data):
    """Tells which release of the generalisation set `data`, the file's bytes, is.

    Returns:
        dictionary of str: "release" is "2020" (the original), "2022-09-13" (51
        semantic roles corrected) or "unknown"; "sha256"; "git_blob", git's hash.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    return {
        "release": GEN_RELEASES.get(sha256, "unknown"),
        "sha256": sha256,
        "git_blob": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
    }
