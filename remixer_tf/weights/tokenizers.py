"""Reads the files of a tokenizer next to published weights.

transformers keeps tokens that were added in three places: `added_tokens.json`,
`added_tokens_decoder` in tokenizer_config.json, and `added_tokens` in tokenizer.json.
Special tokens are also named in tokenizer_config.json and special_tokens_map.json.
"""

import itertools
import math
import re

from remixer_tf.data.published_vocabulary import AddedToken, read_pieces
from remixer_tf.errors import UserError, shorten
from remixer_tf.weights.values import check_fields, flag, integer, short, word

CONFIG, FILE, MAP = "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json"
_OF_T5 = {"<pad>": 0, "</s>": 1, "<unk>": 2}
_NAMES_OF_T5 = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
_OF_BERT = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep")}
_OF_BERT |= {"unk_token": "[UNK]", "mask_token": "[MASK]"}
BYTES = "ByT5Tokenizer"
_CLASSES = (
    *("T5Tokenizer", "T5TokenizerFast", "MT5Tokenizer", "MT5TokenizerFast", BYTES),
    *("PreTrainedTokenizerFast", "TokenizersBackend"),
)
_EXTRA_ID = re.compile(r"<extra_id_\d+>")


def reads_bytes(folder):
    """Whether a T5 reads bytes. Raises a ValueError if its tokenizer is not T5's."""
    tokenizer = folder.json(CONFIG)
    check_fields(
        tokenizer,
        sp_model_kwargs={},
        split_special_tokens=False,
        add_bos_token=False,
        add_eos_token=True,
        add_prefix_space=True,
        do_lower_case=False,
        truncation_side="right",
    )
    _check_names(folder, _NAMES_OF_T5)
    classes = (folder.json("config.json"), tokenizer)
    return BYTES in [
        word(values, "tokenizer_class", _CLASSES[0], _CLASSES) for values in classes
    ]


def pieces_of_t5(folder, extra_ids):
    """The path of a T5's pieces, or None, and its `AddedToken`s, a tuple.

    `folder` is a `PublishedFolder`. Raises a ValueError if its files contradict each
    other, or say what the vocabulary here cannot do.
    """
    path, other = folder.file("spiece.model"), folder.file(FILE)
    for part in ("model", "normalizer", "pre_tokenizer", "decoder", "post_processor"):
        folder.json(FILE).get(part)  # `read_pieces` obeys or refuses them.
    names = [f"<extra_id_{i}>" for i in reversed(range(extra_ids))]
    known = _OF_T5 | dict.fromkeys(names)
    if path or other:
        first = _number_of_pieces(path, other, extra_ids)
        known |= {name: first + place for place, name in enumerate(names)}
    found = added_tokens(folder, known)
    unplaced = [token.text for token in found if token.id is None]
    if unplaced and not (path or other):
        raise UserError(
            f"{folder.path} has the special tokens {shorten(unplaced)}, and no pieces "
            "whose number would be their id. Add spiece.model or tokenizer.json."
        )
    if unplaced:  # transformers adds them after all others.
        ids = itertools.count(max([first + extra_ids - 1, *_ids(found)]) + 1)
        found = [x if x.id is not None else x._replace(id=next(ids)) for x in found]
    return path or other, tuple(sorted(found, key=lambda token: token.id))


def _ids(tokens):
    return [token.id for token in tokens if token.id is not None]


def _number_of_pieces(path, other, extra_ids):
    """The number of pieces before the extra ids, of a model, a tokenizer.json or both.

    Raises a ValueError if the files differ.
    """
    files = [x for x in (path, other) if x]
    try:
        pieces = [[*read_pieces(file, extra_ids).pieces] for file in files]
    except Exception as error:  # protobuf raises kinds of its own
        raise UserError(f"{' or '.join(files)} cannot be read: {error}.") from error
    for first, second in zip(pieces[0], pieces[-1], strict=False):
        near = math.isclose(first.score, second.score, abs_tol=1e-4)
        if first.piece != second.piece or not near:
            raise UserError(
                f"{path} and {FILE} next to it differ in the piece "
                f"{first.piece!r:.60}. Remove the file that the weights were not "
                "trained with."
            )
    if len(pieces[0]) != len(pieces[-1]):
        raise UserError(
            f"{path} has {len(pieces[0])} pieces and {FILE} next to it "
            f"{len(pieces[-1])}. Remove the file that the weights were not trained "
            "with."
        )
    return len(pieces[0])


def check_bytes(folder):
    """Raises a ValueError if tokens were added to a tokenizer of bytes."""
    tokens = added_tokens(folder, _OF_T5)
    _refuse([x.text for x in tokens if not _EXTRA_ID.fullmatch(x.text)], "bytes")


def check_word_pieces(folder):
    """Raises a ValueError if tokens were added to a BERT's, or special ones differ."""
    _check_names(folder, _OF_BERT)
    tokens = added_tokens(folder, dict.fromkeys(_OF_BERT.values()))
    _refuse([token.text for token in tokens], "WordPiece")


def _refuse(texts, kind):
    if texts:
        raise UserError(
            "The tokenizer's files have added tokens: "
            f"{shorten([f'{text!r:.60}' for text in texts])}. A vocabulary of {kind} "
            "has none here, and would read other ids than the model was trained with."
        )


def added_tokens(folder, known):
    """The `AddedToken`s that the files of a tokenizer name, a list.

    `known` is {text: id, or None for any}, and such tokens are not in the list. The id
    of a token that is special and was given none is None. Raises a ValueError if files
    contradict each other.
    """
    found, special = {}, _special_tokens(folder)
    decoder = folder.json(CONFIG).get("added_tokens_decoder") or {}
    listed = folder.json(FILE).get("added_tokens") or []
    encoder = folder.json("added_tokens.json")
    if not isinstance(decoder, dict) or not isinstance(listed, list):
        raise UserError(
            f"added_tokens_decoder in {CONFIG} must be an object, and added_tokens in "
            f"{FILE} a list. Received: {short(decoder)}, {short(listed)}"
        )
    given = [(f"added_tokens_decoder in {CONFIG}", k, v) for k, v in decoder.items()]
    given += [(f"added_tokens in {FILE}", None, token) for token in listed]
    given += [
        (
            "added_tokens.json",
            encoder[text],
            {"content": text, "special": text in special},
        )
        for text in encoder
    ]
    for file, number, token in given:
        token = _token(file, number, token)
        text = token.text
        if text in known:
            if known[text] not in (None, token.id):
                raise UserError(
                    f"{file} has {text!r} as {token.id}. Expected: {known[text]}."
                )
        elif text in found and found[text].id != token.id:
            raise UserError(
                f"The tokenizer's files have {text!r:.60} as {found[text].id} and, in "
                f"{file}, as {token.id}. Make the files agree."
            )
        else:
            found.setdefault(text, token)
    for text in special:
        if text not in known and text not in found:
            found[text] = AddedToken(text, None, False, True)
    return [*found.values()]


def _token(file, number, values):
    if not isinstance(values, dict) or not isinstance(values.get("content"), str):
        raise UserError(f"{file} has {short(values)} where a token was expected.")
    text = values["content"]
    try:
        number = int(values["id"] if number is None else number)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{file} has no id of the token {text!r:.60}.") from None
    integer({"id": number}, "id", low=0)
    special = flag(values, "special", False)
    strips = [x for x in ("lstrip", "rstrip", "single_word") if flag(values, x, False)]
    mask = text == "[MASK]" or _EXTRA_ID.fullmatch(text)
    if strips and not mask and text not in _OF_T5:
        raise UserError(
            f"{file} has {text!r:.60} with {strips[0]}, which the vocabulary here does "
            "not follow. Expected: false."
        )
    return AddedToken(text, number, flag(values, "normalized", not special), special)


def _special_tokens(folder):
    """Texts of the special tokens without names of their own, a dictionary as a set."""
    found = {}
    for file in (CONFIG, MAP):
        for name in ("additional_special_tokens", "extra_special_tokens"):
            tokens = folder.json(file).get(name) or []
            tokens = tokens.values() if isinstance(tokens, dict) else tokens
            if isinstance(tokens, str):
                raise UserError(
                    f"{name} in {file} must be a list. Received: {tokens!r:.60}"
                )
            found |= dict.fromkeys(_text(token, name, file) for token in tokens)
    return found


def _check_names(folder, names):
    for file in (CONFIG, MAP):
        for name, expected in names.items():
            token = folder.json(file).get(name)
            if token is not None and _text(token, name, file) != expected:
                raise UserError(
                    f"{name} in {file} must be {expected}, as it is here. Received: "
                    f"{short(token)}"
                )


def _text(token, name, file):
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise UserError(f"{name} in {file} must be a text. Received: {short(token)}")
    return text
