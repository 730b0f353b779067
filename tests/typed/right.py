"""A user's script that mypy --strict passes, with each public constructor and function.

`make lint` checks its types; nothing runs it.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import remixer_tf as rt
from remixer_tf import decoding, layers, models, optimizers, testing
from remixer_tf.objectives.losses import CrossEntropy


class Scale(layers.Sublayer):
    """A layer of one's own."""

    causal = None
    lora_projections = ("out",)

    def __init__(self, factor: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factor = factor

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        shape = input_shape[-1:]
        self.scale = self.add_weight(name="scale", shape=shape, axes=(None,))

    def call(self, x: Any, context: layers.Context, training: bool = False) -> Any:
        layers.sow(self, "statistics", "factor", self.factor)
        return x * self.scale

    def decode_step(
        self,
        x: Any,
        cache: dict[str, Any],
        context: layers.Context,
        state: layers.DecodeState,
    ) -> tuple[Any, dict[str, Any]]:
        return self(x, context=context), cache

    def mixing_facts(self, length: int) -> layers.MixingFacts:
        return layers.MixingFacts(symbol="S", signed=False)


def each_layer(x: Any, tokens: Any) -> list[Any]:
    named: layers.Sublayer = layers.RemixerBlock(32, name="remixer", dtype="float32")
    gate = partial(layers.SparseSpatialGate, num_experts=4, routing="partial")
    made = [
        named,
        layers.RemixerBlock(d_ff=None, alpha="gated", causal=True, max_length=8),
        layers.LengthMixing(num_mixing_heads=2, toeplitz=True, softmax=True),
        layers.GatedMLP(32, gate=gate, attention=partial(layers.TinyAttention, d_kv=4)),
        layers.SpatialGatingUnit("linear", spatial_stddev=0.1),
        layers.SelfAttention(2, 8, relative_bias=True, use_bias=True, causal=True),
        layers.BertSelfAttention(2, 8, dropout_rate=0.1, max_length=8),
        layers.PositionalAttention(2, 8, causal=False),
        layers.CrossAttention(2, 8, stddev=0.02, trainable=False),
        layers.TokenMixingMLP(12, gated=True),
        layers.BlockTokenMLP(12, window=4),
        layers.SlidingTokenMLP(12, window=4, activation="relu"),
        layers.FeedForward(32),
        layers.GatedFeedForward(32, dropout_rate=0),
        layers.BertFeedForward(32, activation="gelu"),
        layers.MoE(4, 32, router=partial(layers.SwitchRouter, capacity_factor=None)),
        layers.MoE(4, 32, router=partial(layers.GShardRouter, jitter=0.1)),
        layers.MoE(4, 32, router=layers.BaseRouter),
        layers.MoE(4, 32, router=partial(layers.HashRouter, vocab_size=100)),
        Scale(2.0, name="scale"),
    ]
    context = layers.Context(tokens=tokens)
    outputs = [layer(x, context=context) for layer in made]
    x = layers.Dropout(0.1, shared_axes=(1,))(layers.RMSNorm(1e-5)(x), training=True)
    x = layers.PositionEmbedding(max_length=8)(layers.LayerNorm()(x), context=context)
    bias = layers.RelativePositionBias(2, bidirectional=True)
    patches = layers.PatchEmbedding(patch_size=4, d_model=16)
    with layers.capture("statistics", lambda layer, name, value: print(name)):
        outputs += [bias(x, x), patches(x), layers.create_toeplitz_matrix(x)]
    return outputs


def each_model(batch: Mapping[str, Any]) -> Any:
    sublayers = {
        "self_attention": partial(layers.SelfAttention, num_heads=2, d_kv=8),
        "remixer": partial(layers.RemixerBlock, residual="hidden", d_ff=32),
    }
    pattern = models.alternate([sublayers, sublayers], 4)
    other = models.interleave(sublayers, sublayers, num_layers=4, num_sparse=1)
    stack = partial(
        models.TransformerStack,
        sublayers,
        num_layers=2,
        position_bias=partial(layers.RelativePositionBias, num_heads=2),
        block=models.PostNormBlock,
        max_length=8,
        remat="full",
    )
    models.TransformerStack(pattern, 4, norm=layers.LayerNorm, positions=None)
    models.TransformerStack(other, 4, block=models.Block, final_norm=False)
    models.EncoderOnly(stack, models.SpanHead, vocab_size=64, d_model=16)
    models.EncoderOnly(stack, models.MaskedLMHead, 64, 16, num_token_types=2)
    for head in (models.ClassificationHead, models.MeanPoolingHead):
        models.EncoderOnly(stack, partial(head, num_classes=3), 64, 16)
    models.EmbeddingHead(pooling=["mean"], layers=[(8, "tanh", True)], normalize=True)
    length = models.num_tokens(32, 4, pool="gap")
    models.ImageClassifier(stack, 32, 4, d_model=length, num_classes=10)
    models.DecoderOnly(stack, vocab_size=64, d_model=16, name="mine")
    model = models.EncoderDecoder(stack, stack, 64, 16, tied_logits=True)
    spec = model.batch_spec(2, {"inputs": 8, "targets": 8})
    testing.check_model(model, spec)
    testing.check_sublayer(Scale, causal=True, d_model=8)
    return model.encode(batch)


def each_step(layer: layers.Sublayer, model: models.EncoderDecoder, x: Any) -> Any:
    layer.build((None, None, 16))
    state = layers.DecodeState(step=0, key_positions=x)
    cache = layer.init_cache(2, 8, layers.Context())
    x, cache = layer.prefill(x, cache, layers.Context(), state)
    x, cache = layer.decode_step(x, cache, layers.Context(), state)
    context, cache = model.start_decoding({"encoder_input_tokens": x}, 8)
    logits, cache = model.decode_step(x, cache, context, state)
    return logits


def each_search(model: Any, batch: Any) -> list[Any]:
    limits = decoding.AnswerLimits()
    rules = decoding.T5Rules(alpha=0.6)
    decoding.beam_search(model, batch, 8, decoding.HuggingFaceRules(), beams=2)
    decoding.beam_search(model, batch, 8, rules, n_best=2, limits=limits)
    found = decoding.greedy_decode(model, batch, max_length=8)
    sampling = decoding.Sampling(temperature=0.7, top_k=10)
    decoding.sample(model, batch, 8, sampling, num_samples=2, seed=1)
    decoding.check_scores(model)
    decoding.check_writes(model)
    scores = decoding.score(model, batch)
    span = decoding.best_span(model, batch, 8, num_best=5)
    search = decoding.Search(lambda *args: decoding.Choice(args[0], args[1]))
    hypotheses, _ = decoding.decode(model, batch, 8, search)
    return [found.tokens, scores, span.answers, hypotheses.scores]


def each_optimizer() -> list[Any]:
    rates = [
        optimizers.TruncatedRsqrt(warmup_steps=100),
        optimizers.WarmupRsqrt(multiplier=2.0),
        optimizers.WarmupConstant(1e-3, step_offset=10),
        optimizers.WarmupLinearDecay(1e-3, total_steps=100),
        optimizers.WarmupCosineDecay(learning_rate=1e-3, total_steps=100),
    ]
    return [
        *(rt.Adafactor(rate, weight_decay=0.1, clipnorm=1.0) for rate in rates),
        optimizers.ScheduleFreeAdamW(1e-3, warmup_steps=10),
        optimizers.bert_adamw(1e-3, weight_decay=0.01),
        optimizers.Muon(learning_rate=1e-3),
    ]


def front_door(batches: Any) -> Any:
    names = [preset.name for preset in rt.presets("remixer_s*")]
    model = rt.create(names[0], max_length=128)
    model.compile(rt.Adafactor(1e-3), loss=CrossEntropy(z_loss=1e-4))
    adapters = models.Lora(rank=4, layers="^decoder/", dropout_rate=0.1)
    run = rt.Run(lambda: model, adapters=adapters, dtype_policy="mixed_bfloat16")
    loaded: rt.LoadedRun = rt.load("FOLDER", step=100)
    loss = rt.CrossEntropy(label_smoothing=0.1, tokens_at_once=512)
    print(run.seed, loss.sums(model(batches), batches)["objective"])
    return loaded.generate("the cat slept")
