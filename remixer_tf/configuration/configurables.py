"""What gin may configure."""

import importlib

# The names that gin files may use, by the module that defines them. Importing it
# registers the tasks too.
CONFIGURABLES = {
    "remixer_tf.layers": (
        "BertFeedForward",
        "BertSelfAttention",
        "BlockTokenMLP",
        "CrossAttention",
        "FeedForward",
        "GatedFeedForward",
        "GatedMLP",
        "LayerNorm",
        "MeanPooling",
        "PositionEmbedding",
        "PositionalAttention",
        "RMSNorm",
        "RelativePositionBias",
        "RemixerBlock",
        "SelfAttention",
        "SlidingTokenMLP",
        "TokenMixingMLP",
    ),
    "remixer_tf.models": (
        "ClassificationHead",
        "DecoderOnly",
        "EncoderDecoder",
        "EncoderOnly",
        "ImageClassifier",
        "MaskedLMHead",
        "MeanPoolingHead",
        "SpanHead",
        "TransformerStack",
        "num_tokens",
    ),
    "remixer_tf.decoding": ("best_span", "classify", "greedy_decode"),
    "seqio": (
        "EncDecFeatureConverter",
        "LMFeatureConverter",
        "PrefixLMFeatureConverter",
    ),
    "remixer_tf.data.classification": ("ClassifierFeatureConverter",),
    "remixer_tf.data.masked_lm": ("MaskedLMFeatureConverter",),
    "keras.layers": ("CutMix", "MixUp"),
    "keras.optimizers": ("Adam", "AdamW", "SGD"),
    "remixer_tf.objectives.losses": ("CrossEntropy",),
    "remixer_tf.optimizers": (
        "Adafactor",
        "bert_adamw",
        "TruncatedRsqrt",
        "WarmupConstant",
        "WarmupCosineDecay",
        "WarmupLinearDecay",
        "WarmupRsqrt",
    ),
    "remixer_tf.data.augmentation": (
        "RandAugment",
        "normalize",
        "random_flip",
        "random_resized_crop",
        "resize_and_center_crop",
    ),
    "remixer_tf.data.image_sources": ("ImageFolder", "TfdsImages"),
    "remixer_tf.data.images": ("image_dataset",),
    "remixer_tf.data.vocabularies": ("byte_vocabulary", "sentencepiece_vocabulary"),
    "remixer_tf.data.pipeline": (
        "examples_per_epoch",
        "get_task",
        "steps_in_epochs",
        "train_dataset",
    ),
    "remixer_tf.tasks.cogs_files": ("cogs",),
    "remixer_tf.tasks.entailment": ("art", "conjnli"),
    "remixer_tf.tasks.squad_files": ("squad_files",),
    "remixer_tf.tasks.text_files": ("text_files",),
    "remixer_tf.evaluation.periodic": (
        "Best",
        "DecodedEvaluation",
        "ImageEvaluation",
        "LossEvaluation",
        "evaluate_images",
    ),
    "remixer_tf.checkpoints.initial": ("InitialCheckpoint",),
    "remixer_tf.training.loop": ("train",),
    "remixer_tf.training.tensorflow_engine": ("TensorFlowEngine",),
    "remixer_tf.evaluation.scoring": ("evaluate",),
    "remixer_tf.serving.text_to_text": ("text_to_text",),
    "remixer_tf.analysis.paper": ("PaperRow",),
    "remixer_tf.analysis.drawing": ("ImagePictures", "Pictures"),
}
# Folders of data files, and the function that is told which.
DATA_FOLDERS = {
    "art": "set_art_directory",
    "cogs": "set_directory",
    "conjnli": "set_conjnli_directory",
    "squad_files": "set_directory",
    "text_files": "set_directory",
}


def load(module, name):
    """Returns what gin calls `name`, imported from `module`."""
    return getattr(importlib.import_module(module), DATA_FOLDERS.get(name, name))
