"""The run that the trainer's benchmarks time: Remixer tiny on mini_cogs, in bytes."""

DATA = [
    "--gin_file=runs/mini_cogs.gin",
    "--gin.VOCABULARY=@byte_vocabulary()",
    "--gin.VOCABULARY_FILE=None",
    "--gin.VOCAB_SIZE=259",
    "--gin.FEATURE_LENGTHS={'inputs': 104, 'targets': 192}",
    "--gin.LENGTH_BUCKETS=None",
    "--gin.WARMUP_STEPS=10",
    "--gin.Schedule.steps_per_call=1",
]
ARGUMENTS = ["--gin_file=models/remixer_tiny.gin", *DATA]
