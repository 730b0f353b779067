"""Loss and accuracy with the targets given, of text and of images."""

from remixer_tf.data.eval_batches import batch_examples
from remixer_tf.data.images import eval_images, hash_images
from remixer_tf.errors import UserError
from remixer_tf.evaluation.base import Evaluation, TextEvaluation, function_name
from remixer_tf.evaluation.results import metrics_by_name
from remixer_tf.objectives import losses
from remixer_tf.objectives.batches import scorable, targets_and_weights
from remixer_tf.objectives.summaries import summarize


class _Loss(Evaluation):
    """An evaluation by sums of `losses.cross_entropy` over batches."""

    kind = "loss"
    names = ()  # of the metrics
    unit = "tokens"  # of weight, or "images"

    def batch_function(self, model):
        def sums(batch):
            batch = scorable(batch, model)
            logits = model(batch, training=False)
            values = losses.cross_entropy(logits, *targets_and_weights(batch))
            # With an axis, along which the sums of replicas are joined.
            return {name: value[None] for name, value in values.items()}

        return sums

    def metrics(self, part, predictions):
        values = summarize(predictions, self.unit)
        return {name: float(values[name]) for name in self.names}

    def metric_names(self, wanted=""):
        metrics = dict.fromkeys(self.names)
        results = ({**self._identity(p, 0), "metrics": metrics} for p in self.parts())
        return {name for result in results for name in metrics_by_name(result)}

    def _sums(self, batches, function):
        totals = {}
        for batch in batches:
            batch.pop("example_index", None)
            for name, values in function(batch).items():
                totals[name] = totals.get(name, 0.0) + float(values.sum())
        counted = "target_tokens" if self.unit == "tokens" else self.unit
        return {counted: totals["weight"]}, totals


class LossEvaluation(_Loss, TextEvaluation):
    """Loss, accuracy and perplexity of target tokens: `<task>/<split>/<metric>`.

    The metrics are `loss` (nats per token), `token_accuracy` (the share of tokens whose
    logit is the largest, from 0 to 1) and `perplexity`. Each token is predicted from
    the right targets before it. `DecodedEvaluation` scores whole answers.

    Inputs and targets that are longer than `feature_lengths` are counted, reported and
    trimmed. Arguments and errors: see `TextEvaluation`.
    """

    names = ("loss", "token_accuracy", "perplexity")

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._batches = {}

    def check(self, model_dir, others=()):
        super().check(model_dir, others)
        if not self.parts():
            raise UserError(
                f"The splits {', '.join(self._split_names)} of {self.task.name} have "
                "no labels: there is no loss to compute. Name others with splits."
            )

    def _wanted(self, split):
        return split.has_labels

    def predict(self, part, model, function):
        if part not in self._batches:
            self._batches[part] = batch_examples(
                self._splits[part].examples,
                self.codec(part, model),
                batch_size=self.batch_size,
            )
        over_length = self.count_over_length(part)
        facts, sums = self._sums(self._batches[part], function)
        return {**facts, "over_length": over_length}, sums


class ImageEvaluation(_Loss):
    """Loss and accuracy of images: `<source's name>/<split>/<metric>`.

    The metrics are `loss` (nats per image) and `image_accuracy` (top-1, from 0 to 1).

    Args:
        source, transforms, batch_size: see `remixer_tf.data.images.eval_images`.
        split: str.
        period, name: see `Evaluation`.
    """

    names = ("loss", "image_accuracy")
    unit = "images"

    def __init__(
        self, source, transforms, *, batch_size=64, split="validation", **kwargs
    ):
        super().__init__(**kwargs)
        self._source = source
        self._transforms = list(transforms)
        self._split = split
        self._hash = None
        self._batches = eval_images(
            source, transforms, batch_size=batch_size, split=split
        )

    def parts(self):
        return [(self._source.name, self._split)]

    def settings(self):
        return {"transforms": [function_name(f) for f in self._transforms]}

    def hash_examples(self, part):
        if self._hash is None:
            self._hash = hash_images(self._source, self._split)
        return self._hash

    def predict(self, part, model, function):
        return self._sums(self._batches, function)
