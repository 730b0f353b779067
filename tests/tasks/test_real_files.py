"""Every file of real data that a task reads: its rows, and what T5 makes of targets."""

import collections
import os

import pytest
import seqio

from remixer_tf.data.pipeline import get_task
from remixer_tf.data.vocabularies import sentencepiece_vocabulary
from remixer_tf.tasks import benchmark_files, rows, squad
from tests.data.toy_tasks import train_dataset

# (task, split): the file, and the rows that its publishers tell. Of some the folder has
# a part, whose rows are given; its README says which.
ROWS = {
    ("super_glue_boolq_v102", "train"): ("superglue/BoolQ/train_fewglue32.jsonl", 32),
    ("super_glue_boolq_v102", "validation"): ("superglue/BoolQ/val.jsonl.gz", 3270),
    ("super_glue_boolq_v102", "test"): ("superglue/BoolQ/test.jsonl.gz", 3245),
    ("super_glue_cb_v102", "train"): ("superglue/CB/train.jsonl", 250),
    ("super_glue_cb_v102", "validation"): ("superglue/CB/val.jsonl", 56),
    ("super_glue_cb_v102", "test"): ("superglue/CB/test.jsonl", 250),
    ("super_glue_copa_v102", "train"): ("superglue/COPA/train.jsonl", 400),
    ("super_glue_copa_v102", "validation"): ("superglue/COPA/val.jsonl", 100),
    ("super_glue_copa_v102", "test"): ("superglue/COPA/test.jsonl", 500),
    ("super_glue_multirc_v102", "train"): ("superglue/MultiRC/train.jsonl.gz", 27243),
    ("super_glue_multirc_v102", "validation"): ("superglue/MultiRC/val.jsonl", 4848),
    ("super_glue_multirc_v102", "test"): ("superglue/MultiRC/test.jsonl.gz", 9693),
    ("super_glue_record_v102", "train"): ("superglue/ReCoRD/train_fewglue32.jsonl", 32),
    ("super_glue_record_v102", "validation"): (
        "superglue/ReCoRD/train_fewglue_dev32.jsonl",
        32,
    ),
    ("super_glue_rte_v102", "train"): ("superglue/RTE/train.jsonl.gz", 2490),
    ("super_glue_rte_v102", "validation"): ("superglue/RTE/val.jsonl", 277),
    ("super_glue_rte_v102", "test"): ("superglue/RTE/test.jsonl.gz", 3000),
    ("super_glue_wic_v102", "train"): ("superglue/WiC/train.jsonl.gz", 5428),
    ("super_glue_wic_v102", "validation"): ("superglue/WiC/val.jsonl", 638),
    ("super_glue_wic_v102", "test"): ("superglue/WiC/test.jsonl", 1400),
    ("super_glue_wsc_v102_simple_train", "train"): ("superglue/WSC/train.jsonl", 554),
    ("super_glue_wsc_v102_simple_eval", "validation"): (
        "superglue/WSC/val.jsonl",
        104,
    ),
    ("super_glue_wsc_v102_simple_eval", "test"): ("superglue/WSC/test.jsonl", 146),
    ("glue_sst2_v002", "train"): ("sst2/train.tsv.gz", 67349),
    ("glue_sst2_v002", "validation"): ("sst2/dev.tsv", 872),
    ("glue_qnli_v002", "validation"): ("qnli/dev.tsv.gz", 5463),
    ("glue_mnli_v002", "train"): ("mnli/train_10k.jsonl.gz", 10000),
    ("glue_mnli_v002", "validation_matched"): ("mnli/dev_matched.jsonl.gz", 9815),
    ("glue_mnli_v002", "validation_mismatched"): (
        "mnli/dev_mismatched_hard.jsonl.gz",
        4530,
    ),
    ("anli_r1", "validation"): ("anli/dev_r1.jsonl.gz", 1000),
    ("anli_r2", "validation"): ("anli/dev_r2.jsonl.gz", 1000),
    ("anli_r3", "validation"): ("anli/dev_r3.jsonl.gz", 1198),
    ("anli_r1", "test"): ("anli/test_r1r2r3.jsonl.gz", 1000),
    ("anli_r2", "test"): ("anli/test_r1r2r3.jsonl.gz", 1000),
    ("anli_r3", "test"): ("anli/test_r1r2r3.jsonl.gz", 1200),
    ("conjnli", "train"): ("conjnli/adversarial_train_15k.tsv.gz", 15000),
    ("conjnli", "validation"): ("conjnli/conj_dev.tsv", 623),
    ("conjnli", "test"): ("conjnli/conj_test.tsv", 1000),
    ("snli", "validation"): ("snli/dev.jsonl.gz", 9842),
    ("snli", "test"): ("snli/snli_1.0_test_hard.jsonl.gz", 3261),
    ("hans", "validation"): ("hans_perturbed/val.tsv.gz", 15000),
    ("hans", "test"): ("hans_perturbed/eval.tsv.gz", 15000),
    ("art", "validation"): ("alphanli/dev.jsonl", 1532),
    ("squad_files_spans", "validation"): ("squad/dev-v2.0_cs224n_half.json.gz", 6078),
    ("xquad", "validation"): ("squad/xquad.en.json", 1190),
    ("cogs", "train"): ("cogs/train.tsv.gz", 24155),
    ("cogs", "dev"): ("cogs/dev.tsv", 3000),
    ("cogs", "test"): ("cogs/test.tsv", 3000),
    ("cogs", "gen"): ("cogs/gen.tsv.gz", 21000),
}
# Sets whose targets are not a few classes, which the first rows have all.
FREE = ("super_glue_record", "super_glue_wsc", "squad_files_spans", "xquad", "cogs")
# What T5's vocabulary has no piece for.
UNKNOWN = {
    "squad_files_spans": (34, "ÅÖ×íĐęŁłńœŚśβγδạằ⊆元授時暦朝"),
    "xquad": (9, "~Ö×íāĐīłạằ⁄⊆"),
}
# Files of these folders that are no task's.
OTHERS = {
    "superglue/BoolQ/train_fewglue_dev32.jsonl",
    "superglue/BoolQ/train_lifelong_icl200.jsonl",  # yes and no, without idx
    "superglue/BoolQ/train_no_passage.jsonl.gz",
    "alphanli/dev-labels.lst",  # with dev.jsonl
    "cogs/gen_2022_fix_lines.txt",
    "cogs/gen_cases_to_paper_sections.json",
}


@pytest.fixture
def folders(real_data_dir, monkeypatch):
    monkeypatch.setenv("REMIXER_TF_DATA", str(real_data_dir))
    benchmark_files.glue_folder.set(str(real_data_dir))
    squad.data_folder.set(str(real_data_dir / "squad"))
    yield real_data_dir
    benchmark_files.glue_folder.set(None)
    squad.data_folder.set(None)


def task_of(name, folder):
    if name != "xquad":
        return get_task(name)
    # A part of SQuAD 1.1 under another name, as T5's task reads it.
    path = str(folder / "squad" / "xquad.en.json")
    source = squad.question_source(lambda split: squad.read_json(path), ["validation"])
    return get_task("squad_v010_allanswers").replace(name="xquad", source=source)


def targets_of(task, dataset):
    """The different targets of a split's rows, before they are tokens: a list."""
    if not task.name.startswith(FREE):
        dataset = dataset.take(300)
    if task.name == "squad_files_spans":  # Its targets are positions.
        answers = dataset.map(lambda example: example["answers"]["text"]).unbatch()
        return list({answer.decode() for answer in answers.as_numpy_iterator()})
    for preprocessor in task.preprocessors:
        if preprocessor in (seqio.preprocessors.tokenize, rows.tokenize):
            break
        dataset = preprocessor(dataset)
    batches = dataset.map(lambda example: example["targets"]).batch(4096)
    targets = {target for batch in batches.as_numpy_iterator() for target in batch}
    return [target.decode() for target in targets]


@pytest.mark.real_data
@pytest.mark.slower
def test_every_file_reads_in_full(folders):
    names = {path.split("/")[0] for path, _ in ROWS.values()}
    found = {
        os.path.relpath(os.path.join(folder, file), folders)
        for name in names
        for folder, _, files in os.walk(folders / name)
        for file in files
        if not file.startswith(("README", "LICENSE"))
    }
    assert found == {path for path, _ in ROWS.values()} | OTHERS
    counts, lost = {}, collections.defaultdict(set)
    path = str(folders / "sentencepiece" / "t5_spiece.model")
    pieces = sentencepiece_vocabulary(path, extra_ids=100).tokenizer
    for (name, split), (path, _) in ROWS.items():
        task = task_of(name, folders)
        examples = task.source.get_dataset(split, shuffle=False)
        counts[name, split] = path, int(examples.cardinality())
        targets = targets_of(task, examples)
        decoded = pieces.decode(pieces.encode(targets))
        lost[name] |= {
            target
            for target, text in zip(targets, decoded, strict=True)
            if target.split() != text.split()  # T5's SQuAD puts spaces at the ends.
        }
    assert counts == ROWS
    unknown = {}
    for name in UNKNOWN:
        answers = lost.pop(name)
        characters = {character for answer in answers for character in answer}
        ids = ((x, pieces.encode(x)) for x in sorted(characters))
        characters = "".join(x for x, its in ids if pieces.unk_id() in its)
        unknown[name] = len(answers), characters
    assert unknown == UNKNOWN
    assert set().union(*lost.values()) == {"<unk>"}  # What T5 writes for no label.


# What begins the inputs of T5's forms.
SETS = {"boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc:"}


@pytest.mark.real_data
@pytest.mark.slower
def test_the_mixture_of_super_glue_without_the_set_that_is_not_there(folders):
    path = str(folders / "sentencepiece" / "t5_spiece.model")
    options = {"feature_lengths": {"inputs": 64, "targets": 8}, "batch_size": 16}
    options["count_limit"] = 0
    vocabulary = sentencepiece_vocabulary(path, extra_ids=100)
    without = ["dpr_v001_simple"]
    mixture = get_task("super_glue_v102_proportional", vocabulary, without=without)
    dataset = train_dataset(mixture, **options)
    batch = next(iter(dataset))["encoder_input_tokens"].numpy()[0]
    sets = {vocabulary.decode(row.tolist()).split()[0] for row in batch}
    assert batch.shape == (16, 64) and sets <= SETS and len(sets) > 1, sets
