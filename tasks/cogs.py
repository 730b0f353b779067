"""The tasks `cogs` and `cogs_variable_free`: sentence to logical form.

Kim and Linzen, "COGS: A Compositional Generalization Challenge Based on Semantic
Interpretation", EMNLP 2020. An example of the split gen, with the vocabulary of bytes:

    inputs_pretokenized   "cogs: A baby on a table burned ."
    targets_pretokenized  "baby ( x _ 1 ) AND baby . nmod . on ( x _ 1 , x _ 4 ) ..."
    type                  "obj_pp_to_subj_pp"
    inputs, targets       their ids, each ending in EOS

`cogs_variable_free` has the target "burn ( agent = baby ( nmod . on = table ) )", see
`cogs_forms.py`. The metric is exact match after whitespace normalisation: overall, by
type, over the 18 lexical types, and over the 3 structural ones.

The files are train.tsv, dev.tsv, test.tsv and gen.tsv, perhaps with .gz, without
header. Their folder is `cogs.directory` in gin, REMIXER_TF_COGS_DIR, or cogs in
REMIXER_TF_DATA. If no folder is named, they are downloaded from the authors'
repository.
"""

import hashlib
import os

import requests
import tensorflow as tf
from absl import logging

from remixer_tf.errors import StorageError, UserError
from remixer_tf.tasks import cogs_forms, rows, text_metrics
from remixer_tf.tasks.folders import DataFolder, read_bytes, warn_once

# The types of the generalisation set, as in Table 3 of the paper.
_LEXICAL = """
active_to_passive do_dative_to_pp_dative obj_omitted_transitive_to_transitive
obj_to_subj_common obj_to_subj_proper only_seen_as_transitive_subj_as_unacc_subj
only_seen_as_unacc_subj_as_obj_omitted_transitive_subj
only_seen_as_unacc_subj_as_unerg_subj passive_to_active pp_dative_to_do_dative
prim_to_inf_arg prim_to_obj_common prim_to_obj_proper prim_to_subj_common
prim_to_subj_proper subj_to_obj_common subj_to_obj_proper unacc_to_transitive
"""
_STRUCTURAL = "cp_recursion obj_pp_to_subj_pp pp_recursion"
GEN_TYPES = dict.fromkeys(_LEXICAL.split(), text_metrics.LEXICAL)
GEN_TYPES |= dict.fromkeys(_STRUCTURAL.split(), text_metrics.STRUCTURAL)

# github.com/najoungkim/COGS at its last commit, with the generalisation set as it was
# corrected on 2022-09-13.
URL = (
    "https://raw.githubusercontent.com/najoungkim/COGS/"
    "165a7b669eade971fa47bf568a2e51925360fed8/data/{split}.tsv"
)
CHECKSUMS = {  # SHA-256
    "train": "220b3804b562c0156ee986eff1bdd15c27e52142549362a64f57baf86e304c78",
    "dev": "ab66388a309c7ac1ad210c781a6a0ce12281a9ef24619a12422a752cef61bc21",
    "test": "68f8e51e9f6d9cd22d64efe68dd21d7ea5ba327e9a2359481030161aea757035",
    "gen": "d013d9eee0bafc153f8decc85f42814ac97260f84964d980e1e2b84577b82361",
}
SPLITS = tuple(CHECKSUMS)
# The two releases differ in 51 rows of obj_pp_to_subj_pp: agent became theme.
GEN_RELEASES = {
    "410369d993e7cf3af9bb75835a77b1a332b56e60985a8bf1e7d75c30e91d4828": "2020",
    CHECKSUMS["gen"]: "2022-09-13",
}

data_folder = DataFolder("cogs", "cogs")


def find_file(split):
    """Returns the path of a split's file, which is downloaded if no folder is named."""
    if data_folder.find() == (None, None):
        return download(split)
    return data_folder.find_file(f"{split}.tsv")


def download(split, url=URL):
    """Downloads a split's file once, checks it, and returns its path.

    The file is kept in TFDS_DATA_DIR/downloads/cogs, by default in
    ~/tensorflow_datasets. `url` has `{split}` in it. Raises an OSError, which names
    both ways to provide COGS, if the file cannot be reached or its checksum is wrong.
    """
    data_dir = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    downloads = os.path.join(os.path.expanduser(data_dir), "downloads", "cogs")
    path = os.path.join(downloads, f"{split}.tsv")
    if tf.io.gfile.exists(path):
        return path
    url = url.format(split=split)
    try:
        reply = requests.get(url, timeout=10)
        reply.raise_for_status()
        if hashlib.sha256(reply.content).hexdigest() != CHECKSUMS[split]:
            raise UserError("its checksum is wrong")
        tf.io.gfile.makedirs(downloads)
        temporary = f"{path}.{os.getpid()}"
        with tf.io.gfile.GFile(temporary, "wb") as file:
            file.write(reply.content)
        tf.io.gfile.rename(temporary, path, overwrite=True)
        return path
    except Exception as error:  # whatever the network or the disk raises
        raise StorageError(
            f"COGS: no folder is named, and downloading {split}.tsv failed: {error}. "
            "Either copy train.tsv, dev.tsv, test.tsv and gen.tsv from the folder data "
            "of https://github.com/najoungkim/COGS and name their folder with "
            "REMIXER_TF_COGS_DIR or with --gin.cogs.directory=FOLDER; or run "
            f"once where {url} can be reached."
        ) from error


def parse_rows(data, path):
    """Returns every row of a file's bytes: (sentence, logical form, type).

    Raises a ValueError, with the file, `path`, and the line, if the file is empty, or a
    line is not UTF-8 or not three columns, none of them empty.
    """
    lines = data.removesuffix(b"\n").split(b"\n")
    if lines == [b""]:
        raise UserError(f"{path} is empty. Expected: sentence, tab, logical form, ...")
    parsed = []
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
            raise UserError(
                f"{path}, line {number}: expected three columns separated by tabs "
                "(sentence, logical form, type), none of them empty. Received "
                f"{len(row)}: {text[:80]!r}."
            )
        parsed.append(row)
    return parsed


def describe_release(data):
    """Returns which release of the generalisation set `data`, a file's bytes, is.

    A dictionary of str: "release" is "2020" (the original), "2022-09-13" (51 semantic
    roles corrected) or "unknown"; "sha256".
    """
    sha256 = hashlib.sha256(data).hexdigest()
    return {"release": GEN_RELEASES.get(sha256, "unknown"), "sha256": sha256}


def read_rows(split):
    """Returns the rows of a split: ("cogs: " + sentence, logical form, type).

    The log has the file, and for gen also the release.
    """
    path = find_file(split)
    data = read_bytes(path)
    parsed = parse_rows(data, path)
    logging.info("COGS %s: %d rows of %s", split, len(parsed), path)
    if split == "gen":  # As a warning, since results on two releases differ.
        release = describe_release(data)
        warn_once(
            f"COGS gen: {path} is of the release {release['release']} "
            f"(sha256 {release['sha256']})"
        )
    return [(f"cogs: {sentence}", *others) for sentence, *others in parsed]


def read_variable_free_rows(split):
    """Returns the rows of a split, their logical forms without variables."""
    return [
        (inputs, cogs_forms.to_variable_free(logical_form), type_)
        for inputs, logical_form, type_ in read_rows(split)
    ]


rows.add_task("cogs", read_rows, SPLITS, GEN_TYPES)
rows.add_task("cogs_variable_free", read_variable_free_rows, SPLITS, GEN_TYPES)
