"""Answers to a file of lines: `TextToText.answer_all` next to transformers' `generate`.

    python -m benchmarks.lines --anchors=PYTHON [--lines=2000] [--rounds=3]

Sentences of SST-2's dev and train, by REMIXER_TF_DATA, with T5's vocabulary. T5.1.1
small has random weights, which both share, and writes 4 tokens for each line: SST-2's
answers have 2 or 3. A process of PYTHON has transformers. It gets ids, sorts them by
length, and pads them to the longest of a batch; its time has no tokenizer. It answers
with each of `BATCHES`, and the fastest counts. Ours reads text and returns text, with
its defaults, in batches of 32. Both warm up by all lines before. They take turns; the
ratio is the median over the rounds.
"""

import argparse
import csv
import functools
import gzip
import json
import os
import subprocess
import tempfile

import seqio

from benchmarks.machine import print_machine
from benchmarks.measure import median, print_header, print_row, ratio, take_turns
from remixer_tf import configuration
from remixer_tf.decoding import greedy_decode
from remixer_tf.models import EncoderDecoder
from remixer_tf.serving.text_to_text import TextToText
from remixer_tf.weights.to_hugging_face import export_hugging_face

LENGTH, ANSWER, ROWS = 64, 4, 32
BATCHES = 8, 32, 128
_ANCHOR = os.path.join(os.path.dirname(__file__), "lines_reference.py")


def read_lines(number):
    """The first sentences of SST-2, dev's and then train's."""
    folder = os.path.join(os.environ["REMIXER_TF_DATA"], "sst2")
    with (
        open(f"{folder}/dev.tsv") as dev,
        gzip.open(f"{folder}/train.tsv.gz", "rt") as train,
    ):
        rows = []
        for file in dev, train:
            rows += csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    return [row["sentence"].strip() for row in rows[:number]]


def make_task():
    data = os.environ["REMIXER_TF_DATA"]
    vocabulary = seqio.SentencePieceVocabulary(f"{data}/sentencepiece/t5_spiece.model")
    return seqio.Task(
        "lines_benchmark",
        source=seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=[]),
        output_features={n: seqio.Feature(vocabulary) for n in ("inputs", "targets")},
        preprocessors=[],
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--anchors", metavar="PYTHON", required=True)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print_machine(options.anchors)
    lines, task = read_lines(options.lines), make_task()
    model = configuration.read(["models/t5_1_1_small.gin"], []).call(EncoderDecoder)
    model.build()
    ours = TextToText(
        model,
        task,
        feature_lengths={"inputs": LENGTH, "targets": ANSWER},
        decode_fn=functools.partial(greedy_decode, eos_id=-1),
    )
    encode = task.output_features["inputs"].vocabulary.encode
    with tempfile.TemporaryDirectory() as folder:
        path = export_hugging_face(model, task, os.path.join(folder, "t5"))
        with open(os.path.join(path, "ids.json"), "w") as file:
            json.dump([encode(line)[: LENGTH - 1] + [1] for line in lines], file)
        process = subprocess.Popen(
            [options.anchors, _ANCHOR, path, str(ANSWER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

        def theirs(batch):
            print(batch, file=process.stdin, flush=True)
            if process.stdout.readline() != "done\n":
                raise RuntimeError("transformers has ended; its message is above.")

        contestants = {"ours": lambda: [*ours.answer_all(lines, ROWS)]}
        for batch in BATCHES:
            name = f"transformers, batches of {batch}"
            contestants[name] = functools.partial(theirs, batch)
        take_turns(contestants, 1)
        rounds = take_turns(contestants, options.rounds)
        process.stdin.close()
        process.wait()
    print_header("who", "lines/s", "to the fastest of transformers (goal 3)")
    fastest = min(contestants.keys() - {"ours"}, key=lambda name: median(rounds, name))
    for name in contestants:
        print_row(
            name,
            f"{len(lines) / median(rounds, name):.0f}",
            f"{ratio(rounds, fastest, name):.2f}",
        )


if __name__ == "__main__":
    main()
