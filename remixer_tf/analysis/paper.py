"""A paper's numbers about a model."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """One row of a table of a paper, as printed. None stands for what it does not have.

    Args:
        paper, table, row: str, such as 'Remixer', 'Table 1', and the row's name.
        parameters: number.
        flops: number, of a forward pass.
        batch: dictionary of ints that `flops` count: 'batch_size', examples, and
            'input_length' and 'target_length', tokens.
        steps_per_second: number, of training.
        metrics: dictionary of other numbers by name.
    """

    paper: str | None = None
    table: str | None = None
    row: str | None = None
    parameters: float | None = None
    flops: float | None = None
    batch: dict = dataclasses.field(default_factory=dict)
    steps_per_second: float | None = None
    metrics: dict = dataclasses.field(default_factory=dict)
