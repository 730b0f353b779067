"""The functions and classes that gin may configure.

A name stands in one list: the `__all__` of its package, or `NAMES` here. Tasks register
theirs (`tasks/folders.py`), as a user's modules do.
"""

import importlib

# All names of their `__all__`.
PACKAGES = (
    "remixer_tf.decoding",
    "remixer_tf.layers",
    "remixer_tf.models",
    "remixer_tf.optimizers",
)
# Some names of other modules.
NAMES = {
    "keras.layers": "CutMix MixUp",
    "keras.optimizers": "Adam AdamW Lion SGD",
    "seqio": "EncDecFeatureConverter LMFeatureConverter PrefixLMFeatureConverter",
    "remixer_tf.analysis.drawing": "ImagePictures Pictures",
    "remixer_tf.analysis.cost_table": "PaperRow",
    "remixer_tf.checkpoints.initial": "InitialCheckpoint identity_mixing",
    "remixer_tf.checkpoints.paths": "relative_paths",
    "remixer_tf.configuration.bindings": "scope",
    "remixer_tf.data.augmentation": "RandAugment normalize random_flip "
    "random_resized_crop resize_and_center_crop",
    "remixer_tf.data.classification": "ClassifierFeatureConverter",
    "remixer_tf.data.epochs": "examples_per_epoch steps_in_epochs",
    "remixer_tf.data.image_sources": "ImageFolder TfdsImages",
    "remixer_tf.data.images": "image_dataset",
    "remixer_tf.data.language_model": "LanguageModelFeatureConverter "
    "SuffixLMFeatureConverter",
    "remixer_tf.data.lengths": "LongExamples",
    "remixer_tf.data.masked_lm": "MaskedLMFeatureConverter",
    "remixer_tf.data.pipeline": "Batching allowed_answers train_dataset",
    "remixer_tf.data.spans": "SpanFeatureConverter",
    "remixer_tf.data.vocabularies": "byte_vocabulary sentencepiece_vocabulary "
    "vocabulary_size",
    "remixer_tf.data.vocabulary_training": "trained_vocabulary",
    "remixer_tf.data.wordpiece": "wordpiece_vocabulary",
    "remixer_tf.engines.backend_engine": "backend_engine",
    "remixer_tf.engines.jax.engine": "JaxEngine",
    "remixer_tf.engines.tensorflow.engine": "TensorFlowEngine",
    "remixer_tf.evaluation.best": "Best",
    "remixer_tf.evaluation.decoded": "DecodedEvaluation",
    "remixer_tf.evaluation.evaluate": "evaluate",
    "remixer_tf.evaluation.loss": "ImageEvaluation LossEvaluation",
    "remixer_tf.evaluation.scored": "ScoredEvaluation",
    "remixer_tf.objectives.losses": "CrossEntropy",
    "remixer_tf.objectives.objective": "Objective",
    "remixer_tf.run": "Run",
    "remixer_tf.serving.image_to_class": "image_to_class",
    "remixer_tf.serving.text_encoder": "text_encoder",
    "remixer_tf.serving.text_scorer": "text_scorer",
    "remixer_tf.serving.text_to_text": "text_to_text",
    "remixer_tf.tasks.classes": "encoder_task",
    "remixer_tf.tasks.result_tables": "glue_table inference_table super_glue_table",
    "remixer_tf.tasks.tables": "TableRows table_task",
    "remixer_tf.tasks.text": "text_task",
    "remixer_tf.training.loggers": "MlflowLogger WandbLogger",
    "remixer_tf.training.loop": "train",
    "remixer_tf.training.settings": "Checkpointing Schedule Watching",
}


def configurables():
    """Yields all that gin may configure, as (module's name, name, object)."""
    for module in (*PACKAGES, *NAMES):
        imported = importlib.import_module(module)
        names = NAMES[module].split() if module in NAMES else imported.__all__
        for name in names:
            yield module, name, getattr(imported, name)
