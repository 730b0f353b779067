"""The seqio tasks and mixtures that `import remixer_tf.tasks` registers.

Tasks marked * need t5, and are registered when an unknown name is asked for.

- `{copa,record,hellaswag}_choices[_lm]`: questions whose likeliest choice counts
  (`choices.py`);
- `cogs`, `cogs_variable_free`: the real COGS files (`cogs.py`);
- * `{sst2,mnli,qnli,rte}_classes`: GLUE as BERT reads it (`glue_classes.py`);
- `anli`, `conjnli`, `snli`, `art`, `hans`: inference (`entailment.py`);
- `mini_cogs`: generated sentences, needs no file (`mini_cogs.py`);
- `squad_spans`, `squad_files_spans`: spans that answer questions (`squad.py`);
- `table_task` makes tasks of your own tables, by gin (`tables.py`);
- `text_{span_corruption,prefix_lm,mlm,lm,documents}`: your own text files, and
  `c4_v220_{lm,mlm}` (`text.py`); `text_task` makes others, by gin;
- * T5's own tasks and mixtures (`t5_tasks.py`). They read GLUE, SuperGLUE and SQuAD
  from their own files, if you name a folder (`benchmark_files.py`).
"""

import importlib

from remixer_tf.data.late_tasks import register_late
from remixer_tf.tasks import (  # noqa: F401 (they register their tasks)
    benchmark_files,
    choices,
    cogs,
    entailment,
    mini_cogs,
    squad,
    tables,
    text,
)


@register_late
def _tasks_of_t5():
    for name in ("t5_tasks", "glue_classes"):
        importlib.import_module(f"remixer_tf.tasks.{name}")
