"""The seqio tasks and mixtures that `import remixer_tf.tasks` registers.

- `cogs`: the real COGS files (`cogs.py`);
- `anli`, `conjnli`, `art`: inference (`entailment.py`);
- `mini_cogs`: generated sentences, needs no file (`mini_cogs.py`);
- `squad_spans`, `squad_files_spans`: spans that answer questions (`squad.py`);
- `text_lm`, `text_mlm`, `text_documents`: text files of one's own (`text.py`);
- T5's own tasks and mixtures (`t5_tasks.py`).
"""

from remixer_tf.tasks import cogs, entailment, mini_cogs, squad, t5_tasks, text

__all__ = ["cogs", "entailment", "mini_cogs", "squad", "t5_tasks", "text"]
