"""Runs for tests of what reads a run: two tiny models, trained for one step."""

from remixer_tf.commands import run_command
from remixer_tf.data.vocabulary_training import train_vocabulary

SIZES = [
    "--gin.D_MODEL=16",
    "--gin.D_FF=24",
    "--gin.D_KV=8",
    "--gin.NUM_HEADS=2",
    "--gin.NUM_ENCODER_LAYERS=1",
    "--gin.NUM_DECODER_LAYERS=1",
]
# Most sentences are longer than the inputs: they are trimmed.
TINY = [
    *SIZES,
    "--gin.BATCH_SIZE=4",
    "--gin.LENGTH_BUCKETS=None",
    "--gin.LongExamples.count_limit=0",
    "--gin.TRAIN_STEPS=1",
    "--gin.WARMUP_STEPS=1",
    "--gin.WarmupCosineDecay.total_steps=2",
    "--gin.Schedule.steps_per_call=1",
    "--gin.Schedule.log_period=1",
    "--gin.Schedule.checkpoint_period=1",
]
BYTES = [
    "--gin_file=models/t5_1_1_tiny.gin",
    "--gin_file=runs/mini_cogs.gin",
    "--gin.VOCABULARY=@byte_vocabulary()",
    "--gin.VOCABULARY_FILE=None",
    "--gin.VOCAB_SIZE=259",
    "--gin.FEATURE_LENGTHS={'inputs': 24, 'targets': 16}",
]
WORDS = [
    "--gin_file=models/remixer_tiny.gin",
    "--gin_file=runs/mini_cogs.gin",
    "--gin.VOCAB_SIZE=40",
    "--gin.FEATURE_LENGTHS={'inputs': 6, 'targets': 12}",
    "--gin.DTYPE_POLICY='mixed_bfloat16'",
]
TEXTS = [
    "A cat saw the dog .",
    "the teacher slept . Emma liked a cake in the house",
] * 5
LINE = "to be or not to be that is the question "


def train_run(model_dir, vocabulary, *more):
    """Trains a T5.1.1 on "bytes", or a Remixer in bfloat16 on "words" it half knows.

    More arguments are those of `remixer_tf train`.
    """
    arguments = BYTES
    if vocabulary == "words":
        file = f"{model_dir}/words.model"
        train_vocabulary(TEXTS, file, model_type="word")
        arguments = [*WORDS, f"--gin.VOCABULARY_FILE='{file}'"]
    run_command("train", [f"--model_dir={model_dir}", *arguments, *TINY, *more])


def write_text(folder):
    """Makes a folder with a file of text in it, and returns the folder."""
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join([LINE * 20] * 40))
    return folder
