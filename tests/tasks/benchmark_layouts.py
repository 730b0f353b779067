"""Made-up files of GLUE, SuperGLUE, DPR and SQuAD, as the benchmarks ship them."""

import json

PASSAGE = 'Ann met "Bo" in Rome.\n@highlight\nBo went home'


def super_glue_rows(split):
    """{set: rows of its file}; those of `test` have no labels."""
    record = [
        {"start": 0, "end": 2, "text": "Ann"},
        {"start": 9, "end": 10, "text": "Bo"},
        {"start": 33, "end": 34, "text": "Bo"},
    ]
    answer = {"text": "Bo", "start": 9, "end": 10}
    rows = {
        "BoolQ": [
            {"question": "is it", "passage": "It — is.", "label": True},
            {"question": "was it", "passage": "No.", "label": False},
        ],
        "CB": [
            {"premise": "P.", "hypothesis": "H", "label": "contradiction"},
            {"premise": "Q.", "hypothesis": "I", "label": "neutral"},
        ],
        "COPA": [
            {
                "premise": "P.",
                "choice1": "A.",
                "choice2": "B.",
                "question": question,
                "label": label,
            }
            for question, label in (("cause", 1), ("effect", 0))
        ],
        "RTE": [
            {"premise": "P.", "hypothesis": "H.", "label": "not_entailment"},
            {"premise": "Q.", "hypothesis": "I.", "label": "entailment"},
        ],
        "WiC": [
            {
                "word": "place",
                "sentence1": "My place.",
                "sentence2": "A place.",
                "start1": 3,
                "end1": 8,
                "start2": 2,
                "end2": 7,
                "version": 1.1,
                "label": label,
            }
            for label in (False, True)
        ],
        "WSC": [
            {
                "text": "Mark told Pete lies. He should have been careful.",
                "target": {
                    "span1_text": text,
                    "span1_index": index,
                    "span2_text": "He",
                    "span2_index": 4,
                },
                "label": label,
            }
            for text, index, label in (("mark", 0, False), ("Pete", 2, True))
        ],
        "MultiRC": [
            {
                "passage": {
                    "text": "<b>Sent 1: </b>It rained.<br>",
                    "questions": [
                        {
                            "question": "What fell?",
                            "idx": 3,
                            "answers": [
                                {"text": "Rain", "idx": 7, "label": 1},
                                {"text": "Snow", "idx": 8, "label": 0},
                            ],
                        }
                    ],
                }
            }
        ],
        "ReCoRD": [
            {
                "source": "CNN",
                "passage": {"text": PASSAGE, "entities": record},
                "qas": [
                    {
                        "query": "@placeholder left.",
                        "answers": [answer, {**answer, "text": "Ann"}],
                        "idx": 5,
                    }
                ],
            }
        ],
    }
    for examples in rows.values():
        for i, row in enumerate(examples):
            row["idx"] = i
    if split == "test":
        for row in sum(rows.values(), []):
            row.pop("label", None)
        for question in rows["MultiRC"][0]["passage"]["questions"]:
            for choice in question["answers"]:
                del choice["label"]
        del rows["ReCoRD"][0]["qas"][0]["answers"]
    return rows


def write_super_glue(folder):
    """Writes SuperGLUE and DPR below a `pathlib.Path`."""
    for split in ("train", "val", "test"):
        for name, rows in super_glue_rows(split).items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / name / f"{split}.jsonl").write_text(text)
    for name, keys in (
        ("AX-b", ("sentence1", "sentence2")),
        ("AX-g", ("premise", "hypothesis")),
    ):
        (folder / name).mkdir()
        row = {keys[0]: "P.", keys[1]: "H.", "label": "entailment", "idx": 0}
        (folder / name / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "DPR").mkdir()
    for split in ("train", "test"):
        (folder / "DPR" / f"{split}.c.txt").write_text(
            "Bob asked Tom if he can lend money.\nhe\nBob,Tom\nTom\n\n"
            "Ann fell because she ran.\nshe\nAnn , Eve\nAnn\n\n"
        )


_TSV = {
    "CoLA": {
        "train": 'gj04\t1\t\tThe sailors rode.\nbc01\t0\t*\tThey "it.\n',
        "test": "index\tsentence\n0\tHe left.\n",
    },
    "SST-2": {
        "train": "sentence\tlabel\na charming journey . \t1\nbleak \t0\n",
        "test": "index\tsentence\n0\tfine .\n",
    },
    "MRPC": {
        "train": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        '1\t7\t8\tHe said "no.\tHe said no.\n0\t9\t10\tA.\tB.\n',
        "test": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tC.\tD.\n",
    },
    "QQP": {
        "train": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        "7\t1\t2\tHow?\tHow so?\t1\n8\t3\t4\tWhy\n9\t5\t6\tWho?\tWhat?\t0\n",
        "test": "id\tquestion1\tquestion2\n0\tA?\tB?\n",
    },
    "STS-B": {
        "train": "index\tgenre\tsentence1\tsentence2\tscore\n"
        "0\tnews\tA plane.\tAn air plane.\t4.750\n1\tnews\tA.\tB.\t0.0\n",
        "test": "index\tgenre\tsentence1\tsentence2\n0\tnews\tA.\tB.\n",
    },
    "MNLI": {
        "train": "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\tP.\tH.\tneutral\tneutral\n1\tQ.\tI.\tneutral\tcontradiction\n",
        "test": "index\tsentence1\tsentence2\n0\tP.\tH.\n",
    },
    "QNLI": {
        "train": "index\tquestion\tsentence\tlabel\n"
        "0\tWhat?\tThat.\tentailment\n1\tWho?\tShe.\tnot_entailment\n",
        "test": "index\tquestion\tsentence\n0\tWhat?\tThat.\n",
    },
    "RTE": {
        "train": "index\tsentence1\tsentence2\tlabel\n"
        "0\tP.\tH.\tnot_entailment\n1\tQ.\tI.\tentailment\n",
        "test": "index\tsentence1\tsentence2\n0\tP.\tH.\n",
    },
    "WNLI": {
        "train": "index\tsentence1\tsentence2\tlabel\n"
        "0\tThe fish ate the worm. It was tasty.\tThe worm was tasty.\t1\n"
        "1\tThe fish ate the worm. It was tasty.\tThe fish was tasty.\t0\n",
        "test": "index\tsentence1\tsentence2\n"
        "0\tThe fish ate the worm. It was tasty.\tThe worm was tasty.\n",
    },
}


def write_glue(folder):
    """Writes GLUE below a `pathlib.Path`."""
    for name, files in _TSV.items():
        (folder / name).mkdir(parents=True)
        ends = ("_matched", "_mismatched") if name == "MNLI" else ("",)
        (folder / name / "train.tsv").write_text(files["train"])
        for end in ends:
            (folder / name / f"dev{end}.tsv").write_text(files["train"])
            (folder / name / f"test{end}.tsv").write_text(files["test"])
    (folder / "diagnostic").mkdir()
    (folder / "diagnostic" / "diagnostic.tsv").write_text(
        "index\tsentence1\tsentence2\n0\tP.\tH.\n"
    )


def write_squad(folder):
    """Writes SQuAD 1.1 in a `pathlib.Path`."""
    answers = [
        {"text": "Rome", "answer_start": 12},
        {"text": "in Rome", "answer_start": 9},
    ]
    question = {"id": "q1", "question": "Where?", "answers": answers}
    data = {
        "version": "1.1",
        "data": [
            {
                "title": "Rome",
                "paragraphs": [{"context": "Ann was in  Rome.", "qas": [question]}],
            }
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        (folder / name).write_text(json.dumps(data))
