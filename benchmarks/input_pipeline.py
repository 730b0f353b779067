"""How fast the input pipelines are, on one core.

    python -m benchmarks.input_pipeline --text='FOLDER/*.txt.gz' \
        --vocabulary=spm.model [--super_glue=FOLDER] [--seconds=10]

Batches of 32 examples as training reads them, shuffled, from text or SuperGLUE's own
files and from a cache of the same; of a mixture the tasks whose training files are
there. The time to the first batch, which fills the shuffle buffers, is apart. Tokens
are those that are not padding. All threads share one core.
"""

import os

# Before TensorFlow counts the cores.
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import argparse  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402

import numpy as np  # noqa: E402
import seqio  # noqa: E402
import t5.data  # noqa: E402

from benchmarks.measure import print_header, print_row  # noqa: E402
from remixer_tf.data.caching import write_caches  # noqa: E402
from remixer_tf.data.lengths import LongExamples  # noqa: E402
from remixer_tf.data.masked_lm import MaskedLMFeatureConverter  # noqa: E402
from remixer_tf.data.pipeline import Batching, get_task, train_dataset  # noqa: E402
from remixer_tf.data.vocabularies import sentencepiece_vocabulary  # noqa: E402
from remixer_tf.tasks import benchmark_files  # noqa: E402
from remixer_tf.tasks.text import text_task  # noqa: E402

BATCH = 32
# objective: lengths and feature converter
OBJECTIVES = {
    "span_corruption": (
        {"inputs": 512, "targets": 114},
        seqio.EncDecFeatureConverter,
    ),
    "mlm": ({"inputs": 512, "targets": 512}, MaskedLMFeatureConverter),
    "lm": ({"targets": 512}, seqio.LMFeatureConverter),
}
SUPER_GLUE = {"inputs": 512, "targets": 62}


def super_glue(folder):
    """The mixture of those of SuperGLUE's tasks whose training files are there."""
    benchmark_files.super_glue_folder.set(folder)
    tasks = []
    for task in seqio.MixtureRegistry.get("super_glue_v102_proportional").tasks:
        try:
            task.source.num_input_examples("train")
        except (OSError, KeyError, ValueError) as error:
            print(f"without {task.name}: {str(error).splitlines()[0]}")
        else:
            tasks.append((task, t5.data.rate_num_examples))
    return seqio.Mixture("super_glue", tasks)


def measure(task, lengths, converter, seconds):
    """Returns (seconds to the first batch, examples/s, tokens/s)."""
    start = time.perf_counter()
    batching = Batching(BATCH, feature_converter=converter)
    uncounted = LongExamples(count_limit=0)
    dataset = train_dataset(task, lengths, batching, uncounted)
    batches = dataset.as_numpy_iterator()
    next(batches)
    first = time.perf_counter() - start
    examples = tokens = 0
    start = time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        batch = next(batches)
        examples += BATCH
        tokens += sum(
            np.count_nonzero(batch[name])
            for name in ("encoder_input_tokens", "decoder_target_tokens")
            if name in batch
        )
    return first, examples / passed, tokens / passed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True, help="text files, a pattern")
    parser.add_argument("--vocabulary", required=True, help="a SentencePiece model")
    parser.add_argument("--super_glue", help="folder of SuperGLUE's own files")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each")
    options = parser.parse_args()

    vocabulary = sentencepiece_vocabulary(options.vocabulary, extra_ids=100)
    pipelines = {
        objective: (text_task(objective, {"train": options.text}), *how)
        for objective, how in OBJECTIVES.items()
    }
    if options.super_glue:
        mixture = super_glue(options.super_glue)
        label = f"SuperGLUE mixture, {len(mixture.tasks)} tasks"
        pipelines[label] = (mixture, SUPER_GLUE, seqio.EncDecFeatureConverter)
    print_header(
        "pipeline", "lengths", "read", "first batch (s)", "examples/s", "tokens/s"
    )
    for label, (task, lengths, converter) in pipelines.items():
        with tempfile.TemporaryDirectory() as cache:
            live = get_task(task, vocabulary)
            start = time.perf_counter()
            list(write_caches(live, cache, splits=["train"]))
            written = time.perf_counter() - start
            for read in ("live", f"cached, written in {written:.0f} s"):
                cache_dir = None if read == "live" else cache
                numbers = measure(
                    get_task(task, vocabulary, cache_dir),
                    lengths,
                    converter,
                    options.seconds,
                )
                first, examples, tokens = numbers
                shape = "/".join(map(str, lengths.values()))
                rates = f"{first:.1f}", f"{examples:,.0f}", f"{tokens:,.0f}"
                print_row(label, shape, read, *rates)


if __name__ == "__main__":
    main()
