"""A folder that others published: which of its fields and files were read.

A reader asks a `PublishedFolder` for files and `Fields` for values. It obeys or refuses
each of them. `unread` names the rest, except fields and files that are known here to
change no answer.
"""

import fnmatch
import os

from remixer_tf.errors import UserError, printable, shorten
from remixer_tf.weights.safetensors_files import (
    MERGE_ADAPTERS,
    SafetensorsFolder,
    read_json,
)
from remixer_tf.weights.values import short

# Files that hold settings. Others, such as a README or an optimizer's state, do not.
_WITH_SETTINGS = ("*.json", "*.py", "*.model", "*.safetensors")
# Files and fields that change no answer: they are of training, of saving, of what a
# program prints, or of a class that is not read here.
_SILENT_FILES = ("trainer_state.json", "*_results.json", "preprocessor_config.json")
_SILENT = {
    "config.json": """
        _name_or_path architectures attention_probs_dropout_prob bos_token_id
        cls_token_id sep_token_id mask_token_id unk_token_id classifier_dropout
        directionality dtype finetuning_task gradient_checkpointing id2label label2id
        initializer_factor initializer_range is_encoder_decoder n_positions
        num_decoder_layers output_attentions output_hidden_states output_past
        pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
        pooler_size_per_head pooler_type problem_type return_dict task_specific_params
        tie_word_embeddings torch_dtype torchscript transformers_version use_bfloat16
        use_cache chunk_size_feed_forward prefix num_features label_descriptions
        """,
    "tokenizer_config.json": """
        backend bos_token chat_template
        clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
        is_local legacy local_files_only mask_token max_length model_input_names
        model_max_length name_or_path never_split pad_to_multiple_of pad_token_type_id
        padding padding_side processor_class return_token_type_ids sep_token cls_token
        special_tokens_map_file stride tokenizer_file trust_remote_code truncation
        truncation_strategy unk_id use_fast vocab_file
        """,
    "special_tokens_map.json": "bos_token cls_token mask_token sep_token",
    "tokenizer.json": "version truncation padding post_processor decoder",
    "pretrained_cfg in config.json": """
        architecture classifier custom_load file first_conv fixed_input_size hf_hub_id
        hf_hub_filename license num_classes origin_url paper_ids paper_name pool_size
        source state_dict tag test_crop_pct test_input_size url label_descriptions notes
        """,
    # Images are resized to the size of the arrays, so that no other size is met.
    "model_args in config.json": """
        attn_drop_rate drop_path_rate drop_rate dynamic_img_pad dynamic_img_size
        fix_init nlhb patch_drop_rate pos_drop_rate proj_drop_rate weight_init
        """,
    "config_sentence_transformers.json": """
        __version__ model_type prompts similarity_fn_name
        """,
}


class Fields(dict):
    """The fields of a JSON object, which remember by which names they were asked."""

    def __init__(self, content=()):
        super().__init__(content)
        self._asked = set()

    def get(self, name, default=None):
        self._asked.add(name)
        return super().get(name, default)

    def __getitem__(self, name):
        self._asked.add(name)
        return super().__getitem__(name)

    def __contains__(self, name):
        self._asked.add(name)
        return super().__contains__(name)

    def unread(self, silent):
        """Names of the fields that are set and that nothing asked for, sorted."""
        return sorted(
            name
            for name, value in self.items()
            if value not in (None, False)
            and name not in self._asked
            and name not in silent
        )


class PublishedFolder:
    """A folder of published weights, and what was read of it.

    Raises a ValueError if the weights are PEFT's adapters, or quantized.

    Args:
        path: str, the folder.
    """

    def __init__(self, path):
        self.path = path
        self.names = sorted(os.listdir(path))
        self._remarks, self._read = [], set()
        self._fields = {}  # {name for messages: Fields}
        if "adapter_config.json" in self.names:
            raise UserError(f"{path} has PEFT's adapters. {MERGE_ADAPTERS}")
        quantization = self.json("config.json").get("quantization_config")
        if quantization:
            raise UserError(
                f"{path} is quantized: quantization_config in config.json is "
                f"{short(quantization)}. Dequantize it where it was made: "
                "model.dequantize(), then save_pretrained(NEW)."
            )

    def json(self, name):
        """The `Fields` of a JSON file; none if it is missing."""
        if name not in self._fields:
            path = os.path.join(self.path, name)
            self.fields(name, read_json(path, optional=True))
            self._read.add(name)
        return self._fields[name]

    def fields(self, name, content):
        """The `Fields` of an object inside a file, called `name` in messages."""
        if content is not None and not isinstance(content, dict):
            raise UserError(f"{name} must be an object. Received: {short(content)}")
        self._fields[name] = Fields(content or {})
        return self._fields[name]

    def file(self, name):
        """The path of a file that is read or is known to change nothing, or None."""
        self._read.add(name)
        path = os.path.join(self.path, name)
        return path if os.path.isfile(path) else None

    def safetensors(self, converting):
        """The arrays, a `SafetensorsFolder`."""
        files = SafetensorsFolder(self.path, converting)
        self._read |= {*files.files}
        return files

    def unread_fields(self, name):
        """Names of the fields of `fields(name)` that nothing asked for, sorted."""
        unread = self._fields[name].unread(_SILENT.get(name, "").split())
        return [printable(field[:60]) for field in unread]

    def remark(self, text):
        """Adds a line to those of `unread`, on what the run here does not do."""
        self._remarks.append(f"  not carried over: {text}")

    def unread(self):
        """A tuple of str: remarks, and a line of fields and files not asked for."""
        found = [
            f"{field} in {name}"
            for name in self._fields
            for field in self.unread_fields(name)
        ]
        found += [
            name
            for name in self.names
            if name not in self._read
            and any(fnmatch.fnmatch(name, x) for x in _WITH_SETTINGS)
            and not any(fnmatch.fnmatch(name, x) for x in _SILENT_FILES)
        ]
        if not found:
            return (*self._remarks,)
        return (
            *self._remarks,
            f"  not read of {self.path}: {shorten(found)}",
        )
