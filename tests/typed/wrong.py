"""Mistakes that an editor underlines: `make lint` fails if mypy misses one.

Each line says by its comment what mypy calls the mistake. Nothing runs this script.
"""

from functools import partial
from typing import Any

import remixer_tf as rt
from remixer_tf import decoding, layers, models, optimizers, testing


def wrong_layers() -> None:
    layers.RemixerBlock(d_fff=32)  # type: ignore[call-arg]
    layers.RemixerBlock(d_ff="32")  # type: ignore[arg-type]
    layers.RemixerBlock(alpha=None)  # type: ignore[arg-type]
    layers.RemixerBlock(causal="yes")  # type: ignore[arg-type]
    layers.GatedMLP()  # type: ignore[call-arg]
    layers.GatedMLP(32, gate="split")  # type: ignore[arg-type]
    layers.LengthMixing(num_mixing_heads=1.5)  # type: ignore[arg-type]
    layers.SelfAttention(2)  # type: ignore[call-arg]
    layers.SelfAttention(2, 8, dropout="0.1")  # type: ignore[call-arg]
    layers.BertSelfAttention(2, 8, stack_bias=0.5)  # type: ignore[arg-type]
    layers.CrossAttention(2, 8, relative_bias=True)  # type: ignore[call-arg]
    layers.TokenMixingMLP(12, window=4)  # type: ignore[call-arg]
    layers.SparseSpatialGate(4, variant="split")  # type: ignore[call-arg]
    layers.FeedForward(32, activation=5)  # type: ignore[arg-type]
    layers.MoE(4, 32, router="switch")  # type: ignore[arg-type]
    layers.SwitchRouter(4, capacity="1")  # type: ignore[call-arg]
    layers.Dropout("0.1")  # type: ignore[arg-type]
    layers.MixingFacts(symbol=1)  # type: ignore[arg-type]
    layers.Context(mask=None)  # type: ignore[call-arg]
    layers.capture("statistics", 5)  # type: ignore[arg-type]
    print(layers.GatedMPL)  # type: ignore[attr-defined]
    partial(layers.GatedMLP, d_f=32)  # type: ignore[call-arg]


def wrong_models(stack: Any) -> None:
    models.TransformerStack({}, num_layers="2")  # type: ignore[arg-type]
    models.TransformerStack({}, 2, causal=None)  # type: ignore[arg-type]
    models.TransformerStack({}, 2, layernorm=True)  # type: ignore[call-arg]
    models.DecoderOnly(stack, vocab=64, d_model=16)  # type: ignore[call-arg]
    models.EncoderDecoder("stack", stack, 64, 16)  # type: ignore[arg-type]
    models.EmbeddingHead(layers=[(8, "tanh")])  # type: ignore[list-item]
    models.Lora(rank="4")  # type: ignore[arg-type]
    testing.check_sublayer(stack, d_modell=8)  # type: ignore[call-arg]
    testing.check_sublayer("Scale")  # type: ignore[arg-type]


def wrong_steps(layer: layers.RemixerBlock, model: models.DecoderOnly, x: Any) -> None:
    context, state = layers.Context(), layers.DecodeState(0, x)
    layer.build(16)  # type: ignore[arg-type]
    layer.call(x, x.shape, training="yes")  # type: ignore[arg-type]
    layer.init_cache("2", 8, context)  # type: ignore[arg-type]
    layer.decode_step(x, {}, state, context)  # type: ignore[arg-type]
    layer.prefill(x, {}, context)  # type: ignore[call-arg]
    model.start_decoding({}, max_length="8")  # type: ignore[arg-type]
    model.enable_lora("4")  # type: ignore[arg-type]


def wrong_searches(model: Any, batch: Any) -> None:
    decoding.greedy_decode(model, batch, max_length="8")  # type: ignore[arg-type]
    decoding.beam_search(model, batch, 8)  # type: ignore[call-arg]
    decoding.beam_search(model, batch, 8, decoding.T5Rules)  # type: ignore[arg-type]
    decoding.Sampling(temprature=0.5)  # type: ignore[call-arg]
    decoding.sample(model, batch, 8, 0.7)  # type: ignore[arg-type]


def wrong_front_door() -> None:
    rt.create(5)  # type: ignore[arg-type]
    rt.load("FOLDER", stp=100)  # type: ignore[call-arg]
    rt.load("FOLDER").generate(5)  # type: ignore[arg-type]
    rt.CrossEntropy(z_loss="1e-4")  # type: ignore[arg-type]
    rt.Adafactor(1e-3, weight_decy=0.1)  # type: ignore[call-arg]
    rt.Run(model="remixer")  # type: ignore[arg-type]
    print(rt.Runn)  # type: ignore[attr-defined]
    optimizers.WarmupConstant(learning_rate="fast")  # type: ignore[arg-type]
