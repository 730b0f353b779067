"""What a paper prints about a model."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """One row of a table of a paper, as printed; None where it prints nothing.

    Args:
        paper: str, such as 'Remixer'.
        table: str, such as 'Table 1'.
        row: str, the row's name.
        parameters: number.
        flops: number, of a forward pass.
        batch: dictionary of what `flops` are counted for: 'batch_size', examples, and
            'input_length' and 'target_length', tokens.
        steps_per_second: number, of training.
        metrics: dictionary of numbers by name, what else the row prints.
    """

    paper: str | None = None
    table: str | None = None
    row: str | None = None
    parameters: float | None = None
    flops: float | None = None
    batch: dict = dataclasses.field(default_factory=dict)
    steps_per_second: float | None = None
    metrics: dict = dataclasses.field(default_factory=dict)
