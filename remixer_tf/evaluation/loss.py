"""Loss and accuracy with the targets given, of text and of images."""

from remixer_tf.data.eval_batches import batch_examples, converter_for
from remixer_tf.data.images import eval_images
from remixer_tf.evaluation.evaluation import Evaluation, TextEvaluation
from remixer_tf.evaluation.settings import describe
from remixer_tf.objectives import losses, metrics
from remixer_tf.objectives.batches import scorable, targets_and_weights


class _Loss(Evaluation):
    """What loss evaluations share: the sums of `losses.cross_entropy` over batches."""

    kind = "loss"

    def batch_function(self, model):
        """Returns the sums of a batch, each `[1]`, so that replicas' can be joined."""

        def sums(batch):
            batch = scorable(batch, model)
            logits = model(batch, training=False)
            values = losses.cross_entropy(logits, *targets_and_weights(batch))
            return {name: value[None] for name, value in values.items()}

        return sums

    def _measure(self, batches, function, unit, names):
        totals = {}
        for batch in batches:
            batch.pop("example_index", None)
            for name, values in function(batch).items():
                totals[name] = totals.get(name, 0.0) + float(values.sum())
        values = metrics.summarize(totals)
        values = {name: float(values[name]) for name in names}
        return {unit: totals["weight"], "metrics": values}, None


class LossEvaluation(_Loss, TextEvaluation):
    """Loss and accuracy per target token: `<task>/<split>/{loss,accuracy,...}`.

    Args:
        task, feature_lengths, batch_size, splits, vocabulary, max_examples: see
            `TextEvaluation`. Longer inputs and targets are counted, reported and
            trimmed.
        feature_converter: a `seqio.FeatureConverter` class; None for the model's own,
            see `converter_for`.
        period, name: see `Evaluation`.

    Raises:
        ValueError: what `TextEvaluation` raises.
    """

    def __init__(self, *args, feature_converter=None, **kwargs):
        super().__init__(*args, feature_converter=feature_converter, **kwargs)
        self._batches = {}

    def check(self, model_dir, others=()):
        """Raises if it could not be evaluated, see `Evaluation`."""
        super().check(model_dir, others)
        if not self.parts():
            raise ValueError(
                f"The splits {', '.join(self._splits)} of {self.task.name} have no "
                "labels: there is no loss to compute. Name others with splits."
            )

    def _wanted(self, part):
        return self.has_labels(part)

    def measure(self, part, model, function):
        """Measures, see `Evaluation`."""
        if part not in self._batches:
            self._batches[part] = batch_examples(
                self.examples(part),
                feature_lengths=self.feature_lengths,
                batch_size=self.batch_size,
                feature_converter=self.feature_converter or converter_for(model),
            )
        names = ("loss", "accuracy", "perplexity")
        over_length = self.over_length(part, "they are trimmed")
        batches = self._batches[part]
        result, _ = self._measure(batches, function, "target_tokens", names)
        return {**result, "over_length": over_length}, None


class ImageEvaluation(_Loss):
    """Loss and top-1 accuracy of images: `<source's name>/<split>/{loss,accuracy}`.

    Args:
        source, transforms, batch_size: see `remixer_tf.data.images.eval_images`.
        split: str.
        period, name: see `Evaluation`.
    """

    def __init__(
        self, source, transforms, *, batch_size=64, split="validation", **kwargs
    ):
        super().__init__(**kwargs)
        self._source = source
        self._transforms = list(transforms)
        self._split = split
        self._batches = eval_images(
            source, transforms, batch_size=batch_size, split=split
        )

    def parts(self):
        """Returns the (source name, split) pair of the result."""
        return [(self._source.name, self._split)]

    def settings(self, part):
        """Returns what can change the result, beside the model."""
        return {
            "source": describe(self._source),
            "transforms": describe(self._transforms),
        }

    def measure(self, part, model, function):
        """Measures, see `Evaluation`."""
        return self._measure(self._batches, function, "images", ("loss", "accuracy"))
