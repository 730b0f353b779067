"""The tasks `cogs` and `cogs_variable_free`: sentence to logical form.

They read the real files of COGS. An example of the split gen, with the vocabulary of
bytes:

    inputs_pretokenized   "cogs: A baby on a table burned ."
    targets_pretokenized  "baby ( x _ 1 ) AND baby . nmod . on ( x _ 1 , x _ 4 ) ..."
    type                  "obj_pp_to_subj_pp"
    inputs, targets       their ids, each ending in EOS

`cogs_variable_free` has the target "burn ( agent = baby ( nmod . on = table ) )", see
`cogs_forms.py`. `cogs_files.py` says where the files are looked for. The metric is
exact match after whitespace normalisation: overall, by type, over the 18 lexical types,
and over the 3 structural ones.
"""

from remixer_tf.tasks import cogs_files, cogs_forms, metrics, rows

set_directory = cogs_files.data_folder.set

# The types of the generalisation set, as in Table 3 of the paper.
_LEXICAL = """
active_to_passive do_dative_to_pp_dative obj_omitted_transitive_to_transitive
obj_to_subj_common obj_to_subj_proper only_seen_as_transitive_subj_as_unacc_subj
only_seen_as_unacc_subj_as_obj_omitted_transitive_subj
only_seen_as_unacc_subj_as_unerg_subj passive_to_active pp_dative_to_do_dative
prim_to_inf_arg prim_to_obj_common prim_to_obj_proper prim_to_subj_common
prim_to_subj_proper subj_to_obj_common subj_to_obj_proper unacc_to_transitive
"""
_STRUCTURAL = "cp_recursion obj_pp_to_subj_pp pp_recursion"
GEN_TYPES = dict.fromkeys(_LEXICAL.split(), metrics.LEXICAL)
GEN_TYPES |= dict.fromkeys(_STRUCTURAL.split(), metrics.STRUCTURAL)


def read_rows(split):
    """Returns the rows of a split: ("cogs: " + sentence, logical form, type).

    Raises:
        OSError, ValueError: see `cogs_files`.
    """
    return [(f"cogs: {row[0]}", *row[1:]) for row in cogs_files.read_split(split)]


def read_variable_free_rows(split):
    """Returns the rows of a split, their logical forms without variables."""
    return [
        (inputs, cogs_forms.to_variable_free(logical_form), type_)
        for inputs, logical_form, type_ in read_rows(split)
    ]


rows.add_task("cogs", read_rows, cogs_files.SPLITS, GEN_TYPES)
rows.add_task(
    "cogs_variable_free", read_variable_free_rows, cogs_files.SPLITS, GEN_TYPES
)
