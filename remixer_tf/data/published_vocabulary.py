"""A vocabulary of pieces as Hugging Face's tokenizers hold it.

Its pieces are in a SentencePiece model, or in the tokenizer.json of a Unigram model.
After them come the extra ids, and after those what was added to the tokenizer.
"""

import base64
import json
import re
import tempfile
from typing import NamedTuple

import tensorflow as tf
import tensorflow_text as tf_text
from sentencepiece import (
    SentencePieceNormalizer,
    SentencePieceProcessor,
    sentencepiece_model_pb2,
)

from remixer_tf.data.pieces import SentencePieceVocabulary
from remixer_tf.errors import UserError

_PIECE = sentencepiece_model_pb2.ModelProto.SentencePiece
# The types of T5's special ids: padding, EOS and unknown.
_FIRST_TYPES = (_PIECE.CONTROL, _PIECE.CONTROL, _PIECE.UNKNOWN)
_EXTRA_ID = re.compile(r"<extra_id_(\d+)>")
# Unicode's property White_Space, without the blank itself.
_WHITE_SPACE = (
    "\t\n\v\f\r\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
    "\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)


class AddedToken(NamedTuple):
    """A text that is one token wherever it stands."""

    text: str
    id: int
    normalized: bool  # found in the normalized text, else in the text as it is
    special: bool  # left out by `skip_special_tokens`


class _Model(NamedTuple):
    """A model of all ids, and models of what a text is read with."""

    tokenizer: SentencePieceProcessor
    sp_model: bytes
    pieces: bytes  # without the added tokens
    normalizer: bytes  # see `_byte_model`


class PublishedVocabulary(SentencePieceVocabulary):
    """Pieces of a file, extra ids, and tokens that were added.

    A text is cut at the added tokens, the longest where several begin, and each part is
    a text of its own to the pieces: its first word begins with a blank. So do Hugging
    Face's tokenizers of T5.

    Args:
        path: str, a SentencePiece model, or a tokenizer.json.
        extra_ids: int, see `sentencepiece_vocabulary`.
        added_tokens: list of `AddedToken` or of their fields. Their ids follow the
            extra ids without a gap, or are those of equal pieces.
    """

    def __init__(self, path, extra_ids=0, added_tokens=()):
        super().__init__(path, extra_ids=extra_ids)
        self.added_tokens = tuple(AddedToken(*token) for token in added_tokens)

    @property
    def end_of_extra_ids(self):
        """The id after the last extra id."""
        ids = {token.id for token in self.added_tokens}
        end = self.vocab_size
        while end - 1 in ids:
            end -= 1
        return end

    def _model_context(self):
        if self._model is None:
            model = read_pieces(self.sentencepiece_model_file, self.extra_ids)
            for number in reversed(range(self.extra_ids)):
                _add(model, f"▁<extra_id_{number}>", _PIECE.USER_DEFINED)
            byte_model = _byte_model(model)
            normalizer = _load(byte_model)
            pieces = sentencepiece_model_pb2.ModelProto()
            pieces.CopyFrom(model)
            for text, number, normalized, _ in sorted(
                self.added_tokens, key=lambda token: token.id
            ):
                text = _normalize(normalizer, text) if normalized else text
                if number == len(model.pieces):
                    _add(model, text, _PIECE.USER_DEFINED)
                elif number > len(model.pieces) or model.pieces[number].piece != text:
                    raise UserError(
                        f"the token {text!r} was added as {number}. Expected: "
                        f"{len(model.pieces)}, the next id, or that of an equal piece"
                    )
            models = (x.SerializeToString() for x in (model, pieces, byte_model))
            self._model = _Model(_load(model), *models)
        return self._model

    @property
    def tf_pieces(self):
        """A TensorFlow tokenizer of a text in which no added token stands."""
        return tf_text.SentencepieceTokenizer(model=self._model_context().pieces)

    @property
    def tf_normalizer(self):
        """A TensorFlow tokenizer to the bytes of the normalized text, see `_bytes`."""
        return tf_text.SentencepieceTokenizer(model=self._model_context().normalizer)

    def _encode_tf(self, s):
        pieces = self.tf_pieces

        def encode(texts):
            return pieces.tokenize(self.cut_at_sentinels(texts))

        if tokens := [x for x in self.added_tokens if x.normalized]:
            normalizer, of_pieces = self.tf_normalizer, encode
            piece = self.tokenizer.IdToPiece
            normalized = [token._replace(text=piece(token.id)) for token in tokens]

            def encode(texts):
                ids = normalizer.tokenize(texts)
                texts = tf.strings.reduce_join(tf.gather(_bytes(), ids), axis=-1)
                return _cut(texts, normalized, of_pieces)

        if raw := [x for x in self.added_tokens if not x.normalized]:
            return _cut(s[None], raw, encode).values
        return encode(s[None]).values

    def _encode(self, s):
        with tf.init_scope():
            return self._encode_tf(tf.constant(s)).numpy().tolist()


def read_pieces(path, extra_ids):
    """The `ModelProto` of a SentencePiece model or of a tokenizer.json.

    A tokenizer.json has its extra ids among its pieces; here they are left out. Raises
    a ValueError if the file is damaged, holds another model, or other extra ids.
    """
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    if not path.endswith(".json"):
        return sentencepiece_model_pb2.ModelProto.FromString(content)
    try:
        return _of_json(json.loads(content), extra_ids)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"it is no tokenizer.json of a Unigram model: {error!r}"
        ) from error


def _of_json(tokenizer, extra_ids):
    model = tokenizer["model"]
    for name, value in {"type": "Unigram", "unk_id": 2, "byte_fallback": False}.items():
        if model.get(name, value) != value:
            raise UserError(
                f"{name} of the model in tokenizer.json must be {value}. Received: "
                f"{model[name]!r:.60}"
            )
    vocabulary = [(str(piece), float(score)) for piece, score in model["vocab"]]
    number = 0
    while vocabulary and (found := _EXTRA_ID.fullmatch(vocabulary[-1][0])):
        if int(found[1]) != number:
            raise UserError(
                f"tokenizer.json has {found[0]} where <extra_id_{number}> was expected"
            )
        number += 1
        vocabulary.pop()
    if number != extra_ids:
        raise UserError(
            f"tokenizer.json has {number} extra ids. Expected: {extra_ids} (extra_ids "
            "in tokenizer_config.json, EXTRA_IDS here)"
        )
    made = sentencepiece_model_pb2.ModelProto()
    spec = made.trainer_spec
    spec.model_type = spec.UNIGRAM
    spec.pad_id, spec.eos_id, spec.unk_id, spec.bos_id = 0, 1, 2, -1
    names = "pad_piece", "eos_piece", "unk_piece"
    for name, (piece, _) in zip(names, vocabulary, strict=False):
        setattr(spec, name, piece)
    for place, (piece, score) in enumerate(vocabulary):
        kind = _FIRST_TYPES[place] if place < 3 else _PIECE.NORMAL
        made.pieces.add(piece=piece, score=score, type=kind)
    made.normalizer_spec.name = "tokenizer.json"
    table = _charsmap(tokenizer.get("normalizer"))
    if _check_parts(tokenizer) and not table:
        table = _blanks()
    made.normalizer_spec.precompiled_charsmap = table
    return made


def _charsmap(normalizer):
    """The table of characters of a normalizer that does as SentencePiece's."""
    parts = _parts(normalizer, "normalizers")
    table = b""
    for part in parts:
        if part["type"] == "Precompiled":
            table = base64.b64decode(part["precompiled_charsmap"] or "")
        elif not (
            # SentencePiece leaves out blanks at the end, and all but one of several.
            (part["type"] == "Strip" and part.get("strip_right") is True)
            or (
                part["type"] == "Replace"
                and part["pattern"] == {"Regex": " {2,}"}
                and part["content"] in (" ", "▁")
            )
        ):
            raise _unlike("normalizer", part)
    return table


def _blanks():
    """The table that makes each white space of Unicode a blank, and changes no more.

    transformers 5 writes tokenizers of T5 without a table, which cut at white space.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        rules.writelines(f"{ord(space):X}\t20\n" for space in _WHITE_SPACE)
        rules.flush()
        made = SentencePieceNormalizer(rule_tsv=rules.name).serialized_model_proto()
    model = sentencepiece_model_pb2.ModelProto.FromString(made)
    return model.normalizer_spec.precompiled_charsmap


def _check_parts(tokenizer):
    """Returns whether texts are cut at white space.

    Raises a UserError unless words and the end are marked as T5's are.
    """
    before = _parts(tokenizer.get("pre_tokenizer"), "pretokenizers")
    for part in before:
        if part["type"] != "WhitespaceSplit":
            _check_metaspace("pre_tokenizer", part)
    for part in _parts(tokenizer.get("decoder"), "decoders"):
        _check_metaspace("decoder", part)
    for part in _parts(tokenizer.get("post_processor"), "processors"):
        single = part.get("single", [])
        ends = [x["SpecialToken"]["id"] for x in single if "SpecialToken" in x]
        if part["type"] != "TemplateProcessing" or ends != ["</s>"]:
            raise _unlike("post_processor", part)
    return any(part["type"] == "WhitespaceSplit" for part in before)


def _parts(part, name):
    if part is None:
        return []
    return part[name] if part["type"] == "Sequence" else [part]


def _check_metaspace(name, part):
    # "first" differs after added tokens, and transformers 5 reads it as "always".
    marked = part.get("prepend_scheme", "always") in ("always", "first")
    plain = part.get("replacement", "▁") == "▁" and part.get("add_prefix_space", True)
    if part["type"] != "Metaspace" or not marked or not plain:
        raise _unlike(name, part)


def _unlike(name, part):
    return UserError(
        f"the {name} in tokenizer.json is not one of T5: {json.dumps(part):.120}"
    )


def _add(model, piece, kind):
    model.pieces.add(piece=piece, score=0.0, type=kind)


def _load(model):
    tokenizer = SentencePieceProcessor()
    tokenizer.LoadFromSerializedProto(model.SerializeToString())
    return tokenizer


def _byte_model(model):
    """A model whose ids are the bytes of the text after a model's normalization.

    SentencePiece normalizes inside of its tokenizers only. See `_bytes` for the ids.
    """
    made = sentencepiece_model_pb2.ModelProto()
    made.trainer_spec.byte_fallback = True
    made.normalizer_spec.CopyFrom(model.normalizer_spec)
    for name in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        setattr(made.normalizer_spec, name, False)
    _add(made, "<unk>", _PIECE.UNKNOWN)
    for byte in range(256):
        _add(made, f"<0x{byte:02X}>", _PIECE.BYTE)
    _add(made, "a", _PIECE.NORMAL)  # Without one it does not load.
    return made


def _bytes():
    """The bytes that the ids of `_byte_model` stand for, string `[258]`."""
    return tf.constant([b"", *(bytes([byte]) for byte in range(256)), b"a"])


def _normalize(normalizer, text):
    ids = normalizer.EncodeAsIds(text)
    return b"".join(b"a" if x == 257 else bytes([x - 1]) for x in ids).decode()


def _cut(texts, tokens, encode):
    """Ids of texts with added tokens, string `[n]`: ragged `[n, (ids)]`.

    `encode` makes ragged ids of the other parts.
    """
    # The longest first: of alternatives the first that fits is taken.
    names = sorted((token.text for token in tokens), key=len, reverse=True)
    pattern = f"({'|'.join(re.escape(name) for name in names)})"
    parts = tf_text.regex_split(texts, pattern, "(?s).*")
    flat = parts.values
    equal = flat[:, None] == tf.constant([token.text for token in tokens])
    found = tf.reduce_any(equal, axis=1)
    ids = tf.gather([token.id for token in tokens], tf.argmax(equal, axis=1))
    own = tf.RaggedTensor.from_row_lengths(ids[found], tf.cast(found, tf.int64))
    others = encode(tf.where(found, "", flat))
    return parts.with_values(tf.concat([own, others], axis=1)).merge_dims(1, 2)
