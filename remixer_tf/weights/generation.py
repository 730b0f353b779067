"""How a published T5 is asked: `generation_config.json` and our searches.

The settings are those of transformers 5 (`generation/configuration_utils.py`). There a
length counts the id that the decoder starts with, here it does not.
"""

from typing import NamedTuple

from remixer_tf.decoding import AnswerLimits, Sampling
from remixer_tf.errors import UserError
from remixer_tf.weights.values import flag, integer, real, short

# Settings that change no answer here. `check_ids` compares the ids.
_SILENT = {
    "_from_model_config",
    "bos_token_id",
    "cache_implementation",
    "decoder_start_token_id",
    "eos_token_id",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "return_dict_in_generate",
    "transformers_version",
    "use_cache",
}
_OF_ONE_SEARCH = ("early_stopping", "length_penalty", "temperature", "top_k", "top_p")
# Fields of `AnswerLimits`, and transformers' names of them.
_LIMITS = {
    "min_length": "min_new_tokens",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "repetition_penalty": "repetition_penalty",
}
# Settings that config.json has where there is no generation_config.json.
_IN_CONFIG = (
    *("max_length", "min_length", "do_sample", "num_beams", "num_return_sequences"),
    *("repetition_penalty", "no_repeat_ngram_size", *_OF_ONE_SEARCH),
    *("num_beam_groups", "diversity_penalty", "typical_p", "bad_words_ids"),
    *("encoder_no_repeat_ngram_size", "exponential_decay_length_penalty"),
    *("forced_bos_token_id", "forced_eos_token_id"),
    *("suppress_tokens", "begin_suppress_tokens", "remove_invalid_values"),
)
_MOST_TOKENS = 2**16
_SAMPLED = 50  # tokens, where top_k is not set


class Generation(NamedTuple):
    """How answers are made, for gin."""

    file: str | None = None  # a gin file of this package; None for greedy decoding
    bindings: dict = {}  # {name: value}, after that file
    left_out: dict = {}  # {setting: value} that no search here can follow


def check_ids(settings, file):
    """Raises ValueError if the special ids in a file's content are not T5's."""
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    for name, value in ids.items():
        if settings.get(name) not in (None, value, [value]):
            raise UserError(
                f"{name} in {file} must be {value}, as it is here. Received: "
                f"{short(settings[name])}"
            )


def settings_in(config):
    """The settings of generation among the fields of config.json, a dictionary."""
    return {name: config[name] for name in _IN_CONFIG if name in config}


def read_generation(settings):
    """Reads the content of generation_config.json, a dictionary, as a `Generation`.

    Raises a ValueError if a value has another type or is out of range, or an id is not
    T5's.
    """
    check_ids(settings, "generation_config.json")
    left = {k: v for k, v in settings.items() if v is not None and k not in _SILENT}

    def take(kind, name, default, low, high):
        left.pop(name, None)
        return kind(settings, name, default, low, high)

    beams = take(integer, "num_beams", 1, 1, 1024)
    answers = take(integer, "num_return_sequences", 1, 1, 1024)
    left.pop("do_sample", None)
    samples = flag(settings, "do_sample", False)
    least, least_new, longest, longest_new, unrepeated = (
        take(integer, name, 0, 0, _MOST_TOKENS)
        for name in (
            *("min_length", "min_new_tokens", "max_length", "max_new_tokens"),
            "no_repeat_ngram_size",
        )
    )
    own_least = settings.get("min_new_tokens")  # Also 0 prevails over min_length.
    common = {
        "min_length": max(0, least - 1) if own_least is None else least_new,
        "no_repeat_ngram_size": unrepeated,
        "repetition_penalty": take(real, "repetition_penalty", 1.0, 1e-3, 1e3),
    }
    longest = longest_new or longest - 1

    if beams > 1:
        file = "decoding/huggingface.gin"
        penalty = take(real, "length_penalty", 1.0, -100.0, 100.0)
        early = settings.get("early_stopping")
        own = {
            "beam_search.beams": beams,
            "beam_search.n_best": answers,
            "HuggingFaceRules.length_penalty": penalty,
            "HuggingFaceRules.early_stopping": early
            if early == "never"
            else flag(settings, "early_stopping", False),
        }
        if samples:  # a search that draws its beams
            left["do_sample"] = True
    elif samples:
        file = "decoding/sampling.gin"
        own = {
            "Sampling.temperature": take(real, "temperature", 1.0, 0.0, 1e3),
            "Sampling.top_p": take(real, "top_p", 1.0, 1e-6, 1.0),
            "sample.num_samples": answers,
        }
        if top_k := take(integer, "top_k", _SAMPLED, 0, 2**31 - 1):
            own["Sampling.top_k"] = top_k
    else:
        file, own = None, {}
        if answers > 1:
            left["num_return_sequences"] = answers
    for setting in _OF_ONE_SEARCH:  # transformers' others do not read it either
        left.pop(setting, None)
    free = AnswerLimits()
    changed = {k: v for k, v in common.items() if v != getattr(free, k)}
    if changed and file is None:
        file = "decoding/greedy.gin"
    bindings = own | {f"AnswerLimits.{k}": v for k, v in changed.items()}
    if longest > 0:
        bindings["text_to_text.max_length"] = longest
        bindings["DecodedEvaluation.max_length"] = longest
    return Generation(file, bindings, left)


def write_generation(search, arguments, max_new_tokens):
    """Returns settings with which transformers answers as a search of ours.

    `search` is the name of a function of `remixer_tf.decoding`, and `arguments` is what
    is bound to its arguments. Returns a dictionary for generation_config.json, and a
    list of str that names what transformers cannot do.
    """
    settings = {"max_new_tokens": max_new_tokens, "num_beams": 1, "do_sample": False}
    limits, free = arguments.get("limits") or AnswerLimits(), AnswerLimits()
    sampling = arguments.get("sampling") or Sampling()
    left = []
    if search == "beam_search":
        settings["num_beams"] = arguments.get("beams", 4)
        settings["num_return_sequences"] = arguments.get("n_best", 1)
        rules = arguments["rules"]
        if hasattr(rules, "length_penalty"):
            settings["length_penalty"] = rules.length_penalty
            settings["early_stopping"] = rules.early_stopping
        else:
            left.append(f"{type(rules).__name__}, answers rank by its own rules")
    elif search == "sample" and sampling.temperature > 0:
        settings |= {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": sampling.top_p,
            "num_return_sequences": arguments.get("num_samples", 1),
        }
    elif search not in ("sample", "greedy_decode"):
        left.append(f"{search}, it decodes greedily")
    if limits.allowed is not None:
        left.append("allowed, the strings that an answer is one of")
    for ours, theirs in _LIMITS.items():
        if getattr(limits, ours) != getattr(free, ours):
            settings[theirs] = getattr(limits, ours)
    return settings, left


def describe_left_out(left_out):
    """Lines that name the settings of `Generation.left_out`."""
    return [
        f"  not carried over: {repr(name[:60])[1:-1]} = {short(value)} of the "
        "published search"
        for name, value in left_out.items()
    ]
