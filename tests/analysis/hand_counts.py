"""Parameters and matrix products of the papers' models, by their equations.

Plain Python: nothing of the package is used. Sizes are those that the papers print, or
that the headers of `gin/models` give as ours. Letters: d channels, f hidden units, n
tokens, L the longest sequence, a the channels of all heads. A part is a `Count` of one
example, products as 2 m n k.
"""

import math
from typing import NamedTuple


class Count(NamedTuple):
    parameters: int = 0
    products: int = 0  # FLOPs of matrix products

    def __add__(self, other):
        return Count(*map(sum, zip(self, other, strict=True)))

    def __mul__(self, times):
        return Count(*(times * number for number in self))

    def of(self, rows):
        """The same part, run on so many rows."""
        return Count(self.parameters, rows * self.products)


def total(*parts):
    return sum(parts, Count())


def dense(n, d_in, d_out, bias=False):
    return Count(d_in * d_out + bias * d_out, 2 * n * d_in * d_out)


def weights(*sizes):
    return Count(sum(sizes))


def product(m, n, k, times=1):
    return Count(0, 2 * times * m * n * k)


# T5 (Raffel et al. 2020): RMSNorm, no biases, 32 buckets a head, shared in a stack.


def attention(n, d, a, memory=None, bias=False, d_out=None):
    """Q, K, V, O of n tokens, to `memory` tokens (None: to themselves)."""
    m = n if memory is None else memory
    into = dense(n, d, a, bias) + dense(m, d, a, bias) * 2
    return into + dense(n, a, d_out or d, bias) + product(n, m, a, times=2)


def feed_forward(n, d, f, gated=False, bias=False):
    return dense(n, d, f, bias) * (1 + gated) + dense(n, f, d, bias)


def remixer(n, d, f, L, heads=1, gate=False, masked=False):
    """Remixers, section 2.1, and how much of each row of softmax(H) is no padding."""
    mixing = weights(heads * L * L) + product(n, n, f)
    mixing += product(n, n, 1, heads * masked)
    return dense(n, d, f) * 2 + mixing + dense(n, f, d) + dense(n, f, f, True) * gate


def token_mlp(n, d, hidden, L):
    """Three matrices over tokens: T5.1.1's GEGLU turned onto them."""
    return weights(3 * hidden * L) + product(n, hidden, d, times=3)


def block_token_mlp(n, d, hidden, window):
    """The same in blocks, whose hidden units are as many for each token."""
    block = min(n, window)
    units = hidden * block // window
    blocks = math.ceil(n / block)
    return weights(3 * hidden * window) + product(block, units, d, times=3 * blocks)


class T5(NamedTuple):
    """An encoder-decoder. The encoder's and decoder's mixer may be others."""

    d: int
    f: int
    a: int
    heads: int
    layers: tuple  # of encoder and decoder
    block: str = "feed_forward"
    mixers: tuple = ("attention", "attention")
    gated: bool = True
    tied: bool = False
    L: int = 512
    mixing_heads: int = 1
    hidden: int = 0  # of the MLP over tokens
    window: int = 0
    gate: bool = False
    experts: int = 0
    d_attention: int = 0

    def count(self, batch):
        size, n, m = batch
        vocabulary = 32128
        ends = dense(m, self.d, vocabulary)
        ends += weights(0 if self.tied else vocabulary * self.d)
        return total(ends.of(size), *(self._stack(side, *batch) for side in (0, 1)))

    def _stack(self, side, size, n, m):
        d, tokens = self.d, (n, m)[side]
        gmlp = self.block == "gmlp"
        norm = weights(2 * d if gmlp else d)
        parts = [norm]  # the last one
        if self.mixers[side] == "attention" and not gmlp:
            parts.append(weights(32 * self.heads))
        for layer in range(self.layers[side]):
            own = []
            if not gmlp:
                own.append(self._mixer(side, tokens))
            if side:
                own.append(attention(m, d, self.a, memory=n))
            if self.experts and layer % 2:
                last = moe(size, tokens, d, self.f, self.experts, 1.25, gated=True)
            else:
                last = self._block(tokens, masked=not side).of(size)
            parts += [total(*own).of(size), last, norm * (len(own) + 1)]
        return total(*parts)

    def _mixer(self, side, n):
        if self.mixers[side] == "token_mlp":
            return token_mlp(n, self.d, self.hidden, self.L)
        if self.mixers[side] == "block_token_mlp":
            return block_token_mlp(n, self.d, self.hidden, self.window)
        return attention(n, self.d, self.a)

    def _block(self, n, masked):
        if self.block == "gmlp":
            return gmlp(n, self.d, self.f, self.L, True, d_attention=self.d_attention)
        if self.block == "remixer":
            more = self.mixing_heads, self.gate, masked
            return remixer(n, self.d, self.f, self.L, *more)
        return feed_forward(n, self.d, self.f, self.gated)


# gMLP (Liu et al. 2021): LayerNorm, biases. BERT, MLP-Mixer next to it.


def gmlp(n, d, f, L, toeplitz, heads=1, split=True, d_attention=0):
    """Equations 1 and 2; Toeplitz matrices have 2 L - 1 weights (appendix)."""
    g = f // 2 if split else f
    matrix = heads * (2 * L - 1 if toeplitz else L * L) + heads * L
    parts = dense(n, d, f, True) + dense(n, g, d, True)
    parts += weights(2 * g, matrix) + product(n, n, g)
    if d_attention:
        parts += attention(n, d, d_attention, bias=True, d_out=g)
    return parts


def mixer(n, d, f, hidden, L):
    """Equation 1 of MLP-Mixer: both MLPs with biases."""
    return (
        weights(2 * hidden * L, hidden, L)
        + product(n, hidden, d, times=2)
        + feed_forward(n, d, f, bias=True)
    )


class Encoder(NamedTuple):
    """BERT's protocol: masked tokens, logits tied to the embedding, two token types."""

    d: int
    f: int
    layers: int
    kind: str = "gmlp"
    a: int = 0
    heads: int = 0
    relative: bool = False
    split: bool = True
    d_attention: int = 0
    from_layer: int = 0  # the first with attention
    hidden: int = 0
    L: int = 512

    def count(self, batch):
        size, n, masked = batch
        d, vocabulary = self.d, 32000
        parts = [
            weights(2 * d, 2 * d, 2 * d),  # token types, first and last norm
            product(masked, vocabulary, d) + weights(vocabulary * d),
        ]
        if self.kind == "bert" and not self.relative:
            parts.append(weights(self.L * d))
        parts += [self._layer(n, layer) for layer in range(self.layers)]
        return total(*parts).of(size)

    def _layer(self, n, layer):
        d, f, norm = self.d, self.f, weights(2 * self.d)
        if self.kind == "gmlp":
            tiny = self.d_attention if layer >= self.from_layer else 0
            return norm + gmlp(
                n, d, f, self.L, True, split=self.split, d_attention=tiny
            )
        if self.kind == "mixer":
            return norm * 2 + mixer(n, d, f, self.hidden, self.L)
        biases = weights(32 * self.heads if self.relative else 0)
        if self.kind == "bert":
            mixing = attention(n, d, self.a, bias=True)
        else:  # softmax of the biases alone
            mixing = dense(n, d, self.a, True) + dense(n, self.a, d, True)
            mixing += product(n, n, self.a)
        return norm * 2 + biases + mixing + feed_forward(n, d, f, bias=True)


class Bag(NamedTuple):
    """CBoW: the mean of embeddings, normalised before it, and a classifier."""

    d: int

    def count(self, batch):
        found = weights(32000 * self.d, 2 * self.d) + dense(1, self.d, 2, True)
        return found.of(batch[0])


class Vision(NamedTuple):
    """Patches, a class token with a layer of its own or the mean, 1000 classes.

    A "vit" has no such layer, and learned positions.
    """

    d: int
    f: int
    layers: int
    hidden: int = 0  # of Mixer
    kind: str = "gmlp"
    image: int = 224
    patch: int = 16
    classes: int = 1000

    def count(self, batch):
        d, patches = self.d, (self.image // self.patch) ** 2
        parts = [dense(patches, 3 * self.patch**2, d, True)]
        parts += [weights(2 * d), dense(1, d, self.classes, True)]
        if self.hidden:
            layer = mixer(patches, d, self.f, self.hidden, patches) + weights(4 * d)
        elif self.kind == "resmlp":  # two affine layers, two scales, one matrix
            layer = weights(4 * d, 2 * d, patches * patches, patches)
            layer += product(patches, d, patches)
            layer += feed_forward(patches, d, self.f, bias=True)
        elif self.kind == "vit":
            n = patches + 1
            parts += [weights(d, n * d)]
            layer = weights(4 * d) + attention(n, d, d, bias=True)
            layer += feed_forward(n, d, self.f, bias=True)
        else:
            n = patches + 1
            parts += [weights(d), dense(1, d, d, True)]
            layer = gmlp(n, d, self.f, n, False) + weights(2 * d)
        return total(*parts, layer * self.layers).of(batch[0])


# sMLP (Yu et al. 2022) and its baselines: causal language models, logits tied.


def moe(size, n, d, f, experts, capacity, routes=True, choices=1, gated=False):
    """The rows that experts have room for in training, and the router's products.

    Groups are of at most 1024 tokens, of whole rows. Without a capacity the rows of an
    expert fill blocks of half an even share.
    """
    rows = max(r for r in range(1, size + 1) if size % r == 0 and r * n <= 1024)
    tokens, groups = rows * n, size // rows
    if capacity is None:
        block = max(1, tokens * groups // (2 * experts))
        blocks = (tokens * groups + (experts + 1) * (block - 1)) // block
        places = block * blocks
    else:
        room = max(4, math.ceil(capacity * choices * tokens / experts))
        places = groups * experts * room
    matrices = 2 + gated
    found = Count(experts * matrices * d * f, 2 * places * matrices * d * f)
    return found + dense(size * n, d, experts) * routes


class Language(NamedTuple):
    """A causal stack; every second layer has experts, or `sparse` ones (sMLP)."""

    d: int
    f: int
    layers: int
    kind: str = "transformer"
    a: int = 0
    heads: int = 0
    L: int = 1024
    vocabulary: int = 50257
    toeplitz: bool = False
    mixing_heads: int = 1
    experts: int = 0
    expert_f: int = 0
    sparse: int = 0
    spatial: bool = True
    partial: bool = False
    capacity: float | None = 1.0
    routes: bool = True
    choices: int = 1

    def count(self, batch):
        size, _, n = batch
        ends = product(n, self.vocabulary, self.d) + weights(self.vocabulary * self.d)
        if self.kind == "transformer":
            ends += weights(32 * self.heads)
        ends += weights(2 * self.d)
        layers = [self._layer(size, n, layer) for layer in range(self.layers)]
        return total(ends.of(size), *layers)

    def _layer(self, size, n, layer):
        d, f, norm = self.d, self.f, weights(2 * self.d)

        def experts():
            return moe(
                size, n, d, self.expert_f or f, self.experts, self.capacity,
                self.routes, self.choices,
            )  # fmt: skip

        if self.kind == "transformer":
            first = attention(n, d, self.a, bias=True).of(size) + norm * 2
            if self.experts and layer % 2:
                return first + experts()
            return first + feed_forward(n, d, f, bias=True).of(size)
        every = self.sparse + 1
        if layer not in {i * self.layers // every for i in range(1, every)}:
            heads = self.mixing_heads
            return norm + gmlp(n, d, f, self.L, self.toeplitz, heads).of(size)
        heads = self.experts if self.spatial else 1
        gate = gmlp(n, d, f, self.L, False, heads)
        if self.partial:
            deciding = math.ceil(0.2 * self.L)
            gate += weights(deciding * heads)
            gate += product(f // 2, heads, min(n, deciding))
        return norm * 2 + experts() + gate.of(size)


# The sizes. T5.1.1's are those that T5 has released.
BASE = T5(768, 2048, 768, 12, (12, 12))
LARGE = T5(1024, 2816, 1024, 16, (24, 24))
T5S = {
    "small": T5(512, 1024, 384, 6, (8, 8)),
    "base": BASE,
    "large": LARGE,
    "xl": T5(2048, 5120, 2048, 32, (24, 24)),
    "xxl": T5(4096, 10240, 4096, 64, (24, 24)),
    "tiny": T5(128, 384, 128, 4, (2, 2)),
}
REMIXER = BASE._replace(block="remixer")
LITERAL = REMIXER._replace(f=768)
TABLE_1 = REMIXER._replace(f=2052, mixing_heads=12)
TINY = T5S["tiny"]._replace(L=256)
MIXED = {"mixers": ("token_mlp", "attention")}
MIXER = {"mixers": ("token_mlp", "block_token_mlp")}
BERT = Encoder(768, 3072, 12, "bert", 768, 12)
BERT_LARGE = Encoder(1024, 4096, 24, "bert", 1024, 16)
BERT_TINY = Encoder(128, 512, 4, "bert", 128, 4)
GMLP = Encoder(512, 3072, 48)
GMLP_TINY = Encoder(128, 512, 6)
LM_3B = Language(1024, 4096, 24, a=1024, heads=16, experts=32)
LM_9B = Language(2048, 8192, 16, a=2048, heads=16, experts=32)
LM_TINY = Language(128, 512, 4, a=128, heads=4, L=128, vocabulary=32000)
GATED_TINY = LM_TINY._replace(kind="gmlp")
EXPERTS_TINY = LM_TINY._replace(experts=8)
SMLP_TINY = GATED_TINY._replace(layers=5, sparse=2, experts=8)
SWITCH, HASH = {"capacity": 1.25}, {"capacity": None, "routes": False}
GSHARD = {"choices": 2}

MODELS = {
    **{f"t5_1_1_{size}": model for size, model in T5S.items()},
    **{
        f"remixer_{size}": T5S[size]._replace(block="remixer")
        for size in ("small", "base", "large", "xl", "xxl")
    },
    "remixer_tiny": TINY._replace(block="remixer"),
    "remixer_sbase": REMIXER._replace(layers=(12, 9)),
    "remixer_base_literal": LITERAL,
    "remixer_sbase_literal": LITERAL._replace(layers=(18, 3)),
    "remixer_base_table1": TABLE_1,
    "remixer_sbase_table1": TABLE_1._replace(layers=(6, 9)),
    "mixer_base": BASE._replace(hidden=768, window=256, **MIXER),
    "mixer_encoder_base": BASE._replace(hidden=768, **MIXED),
    "mixer_tiny": TINY._replace(hidden=192, window=64, **MIXER),
    "mixer_encoder_tiny": TINY._replace(hidden=192, **MIXED),
    "gmlp_tiny": TINY._replace(block="gmlp", f=768),
    "amlp_tiny": TINY._replace(block="gmlp", f=768, d_attention=16),
    "switch_t5_tiny": T5S["tiny"]._replace(experts=4),
    "switch_remixer_tiny": TINY._replace(block="remixer", experts=4),
    "bert_base": BERT,
    "bert_large": BERT_LARGE,
    "bert_tiny": BERT_TINY,
    "bert_relative_tiny": BERT_TINY._replace(relative=True),
    "gmlp_base_mlm": GMLP,
    "gmlp_large_mlm": Encoder(768, 3072, 96),
    "gmlp_xlarge_mlm": Encoder(1024, 4096, 144),
    "amlp_base_mlm": Encoder(512, 3072, 36, d_attention=64),
    "amlp_large_mlm": Encoder(768, 3072, 72, d_attention=128),
    "gmlp_tiny_mlm": GMLP_TINY,
    "amlp_tiny_mlm": GMLP_TINY._replace(d_attention=32),
    "amlp_upper_tiny_mlm": GMLP_TINY._replace(d_attention=32, from_layer=4),
    "gmlp_ti": Vision(128, 768, 30),
    "gmlp_s": Vision(256, 1536, 30),
    "gmlp_b": Vision(512, 3072, 30),
    "gmlp_vision_tiny": Vision(64, 384, 4, image=32, patch=4, classes=10),
    "mixer_b16": Vision(768, 3072, 12, hidden=384),
    "mixer_l16": Vision(1024, 4096, 24, hidden=512),
    "deit_ti": Vision(192, 768, 12, kind="vit"),
    "deit_s": Vision(384, 1536, 12, kind="vit"),
    "deit_b": Vision(768, 3072, 12, kind="vit"),
    "vit_b16": Vision(768, 3072, 12, kind="vit", image=384),
    "vit_l16": Vision(1024, 4096, 24, kind="vit", image=384),
    **{f"resmlp_{n}": Vision(384, 1536, n, kind="resmlp") for n in (12, 24, 36)},
    "switch_lm_3b": LM_3B._replace(**SWITCH),
    "gshard_lm_3b": LM_3B._replace(**GSHARD),
    "base_lm_3b": LM_3B,
    "hash_lm_3b": LM_3B._replace(**HASH),
    "smlp_3b": LM_3B._replace(kind="gmlp", layers=30, sparse=12),
    "switch_lm_9b": LM_9B._replace(**SWITCH),
    "gshard_lm_9b": LM_9B._replace(**GSHARD),
    "base_lm_9b": LM_9B,
    "hash_lm_9b": LM_9B._replace(**HASH),
    "smlp_9b": LM_9B._replace(kind="gmlp", layers=20, sparse=8),
    "transformer_lm_tiny": LM_TINY,
    "gmlp_lm_tiny": GATED_TINY._replace(layers=6, toeplitz=True, L=512),
    "gmlp_1_head_lm_tiny": GATED_TINY._replace(layers=7),
    "gmlp_8_heads_lm_tiny": GATED_TINY._replace(layers=7, mixing_heads=8),
    "switch_lm_tiny": LM_TINY._replace(experts=10, expert_f=408, **SWITCH),
    "gshard_lm_tiny": LM_TINY._replace(experts=16, expert_f=256, **GSHARD),
    "base_lm_tiny": EXPERTS_TINY,
    "hash_lm_tiny": EXPERTS_TINY._replace(**HASH),
    "smlp_tiny": SMLP_TINY,
    "smlp_partial_tiny": SMLP_TINY._replace(partial=True),
    "gmlp_tmoe_lm_tiny": SMLP_TINY._replace(spatial=False),
}
T5_1_0 = {"gated": False, "tied": True}
# gMLP's ablations read 128 tokens (Table 8).
RELATIVE = BERT._replace(relative=True, L=128)
ABLATED = GMLP._replace(layers=36, L=128)
ROWS = {
    **{
        f"gmlp/{table}/gmlp_{size}": MODELS[f"gmlp_{size}"]
        for table in ("table1", "table2")
        for size in ("ti", "s", "b")
    },
    **{
        f"gmlp/table2/{name}": MODELS[name]
        for name in (
            "mixer_b16 mixer_l16 deit_ti deit_s deit_b vit_b16 vit_l16 "
            "resmlp_12 resmlp_24 resmlp_36"
        ).split()
    },
    "gmlp/table3/bert_base": BERT._replace(L=128),
    "gmlp/table3/bert_base_relative": RELATIVE,
    "gmlp/table3/bert_base_relative_without_attention": RELATIVE._replace(
        kind="biases"
    ),
    "gmlp/table3/mixer": Encoder(768, 2304, 24, "mixer", hidden=384, L=128),
    "gmlp/table3/gmlp_split": ABLATED,
    **{
        f"gmlp/table3/gmlp_{x}": ABLATED._replace(f=2048, split=False)
        for x in ("linear", "additive", "multiplicative")
    },
    **{f"gmlp/table4/gmlp_{n}": ABLATED._replace(layers=n) for n in (18, 36, 72, 144)},
    **{
        f"gmlp/table4/transformer_{n}": RELATIVE._replace(layers=n)
        for n in (6, 12, 24, 48)
    },
    **{
        f"gmlp/{table}/{name}": MODELS[name if "bert" in name else f"{name}_mlm"]
        for table in ("table5", "table6")
        for name in (
            "bert_base bert_large gmlp_base gmlp_large gmlp_xlarge amlp_base amlp_large"
        ).split()
    },
    **{
        f"gmlp/table10/transformer_{n}x{d}": RELATIVE._replace(
            d=d, f=4 * d, layers=n, a=d, heads=heads
        )
        for n, d, heads in ((12, 768, 12), (24, 512, 8), (48, 384, 12), (96, 256, 8))
    },
    **{
        f"remixer/table1/{name}": MODELS[model]
        for name, model in {
            "mixer": "mixer_base",
            **{x: x for x in "t5_1_1_base remixer_base remixer_base_table1".split()},
            **{x: x for x in "remixer_sbase remixer_sbase_table1".split()},
        }.items()
    },
    "remixer/table2/cbow": Bag(300),
    "remixer/table2/t5_1_0_base": BASE._replace(f=3072, **T5_1_0),
    "remixer/table2/t5_1_1_base_mt": BASE,
    "remixer/table2/remixer_base_mt": REMIXER,
    "remixer/table4/t5_1_0_large": LARGE._replace(f=4096, **T5_1_0),
    "remixer/table4/t5_1_1_large": LARGE,
    **{f"remixer/table{t}/t5_1_1_base": BASE for t in (2, 3, 4)},
    **{f"remixer/table{t}/remixer_base": REMIXER for t in (2, 3, 4, 5)},
    **{f"remixer/table{t}/remixer_sbase": MODELS["remixer_sbase"] for t in (2, 3)},
    **{f"remixer/table{t}/mixer": MODELS["mixer_base"] for t in (2, 3, 4)},
    **{f"remixer/table{t}/mixer_encoder": MODELS["mixer_encoder_base"] for t in (2, 4)},
    "remixer/table5/without_compositional_remixing": REMIXER,
    "remixer/table5/gating": REMIXER._replace(gate=True),
    "remixer/table5/gated_alpha": REMIXER._replace(gate=True),
    **{
        f"smlp/{table}/{name.removesuffix('_lm')}": MODELS[f"{name}_{size}"]
        for table, size in (
            ("mainexperiments", "3b"),
            ("scalabilityexperiments", "9b"),
            ("table6", "9b"),
        )
        for name in ("switch_lm", "gshard_lm", "base_lm", "hash_lm", "smlp")
    },
    "smlp/scalabilityexperiments/switch_enlarged": MODELS["switch_lm_9b"]._replace(
        layers=18
    ),
}
