"""Profiles as tables: for a terminal, in Markdown, or as CSV."""

import dataclasses

from remixer_tf.tables import write_table


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """One row of a table of a paper, as printed. A value that it lacks is None.

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


def write_profiles(profiles, format, file):
    """Writes {name: (`Profile`, `PaperRow`)} in a format of `tables.FORMATS`.

    "text" and "markdown" have a table with a row for each model, next to the numbers of
    its paper, a table of each device's memory for a layout, and a table of the parts of
    each model, with a line that names operations whose FLOPs are not counted. Values of
    macros that were searched for come last, as gin. "csv" is one table with the columns
    model, part, kind, quantity, ours, paper.
    """
    if format == "csv":
        header = ["model", "part", "kind", "quantity", "ours", "paper"]
        write_table(file, format, "", header, _long_rows(profiles))
        return
    write_table(file, format, "", *_models_table(profiles))
    rows = [
        [
            name,
            ",".join(f"{axis}:{size}" for axis, size in profile.layout.axes.items()),
            *map(_size, [*profile.device_memory, sum(profile.device_memory)]),
        ]
        for name, (profile, _) in profiles.items()
        if profile.layout
    ]
    if rows:
        header = ["model", "mesh", "weights", "gradients", "optimizer", "together"]
        write_table(file, format, "on each device", header, rows, labels=2)
    for name, (profile, _) in profiles.items():
        write_table(file, format, name, *_parts_table(profile), labels=2)
        if profile.uncounted:
            file.write(f"\nNot counted: {', '.join(profile.uncounted)}.\n")
    matches = [(n, p.match) for n, (p, _) in profiles.items() if p.match]
    if matches:
        lines = "\n".join(match.gin(name) for name, match in matches)
        lines = f"```gin\n{lines}\n```" if format == "markdown" else lines
        file.write(f"\n{lines}\n")


def _quantities(profile, row):
    """Yields (name, heading, ours, the paper's, function that shows it)."""
    total = profile.total
    if profile.match:
        macro = profile.match.wanted.macro
        yield macro, macro, profile.match.value, None, str
    yield "parameters", "parameters", total.parameters, row.parameters, _millions
    for name in ("batch_size", "inputs", "targets"):
        heading = name.removesuffix("_size")
        yield name, heading, profile.batch.get(name), None, str
    yield "flops", "FLOPs forward", total.flops, row.flops, _scientific
    yield "matmul_flops", "matrix products", total.matmul_flops, None, _scientific
    yield "rest_flops", "the rest", total.rest_flops, None, _scientific
    yield "parameter_bytes", "weights", profile.parameter_bytes, None, _size
    yield "optimizer_bytes", "optimizer", profile.optimizer_bytes, None, _size
    yield "activation_bytes", "activations", profile.activation_bytes, None, _size
    for unit in ("steps", "tokens", "images"):
        name, printed = f"{unit}_per_second", getattr(row, f"{unit}_per_second", None)
        yield name, f"{unit}/s", profile.rates.get(unit), printed, _three_digits
    for name, printed in row.metrics.items():
        yield name, name, None, printed, _three_digits


def _long_rows(profiles):
    for name, (profile, row) in profiles.items():
        for quantity, _, ours, printed, _ in _quantities(profile, row):
            if ours is not None or printed is not None:
                yield name, "", "", quantity, ours, printed
        for (part, kind), counts in profile.parts.items():
            for quantity, value in vars(counts).items():
                yield name, part, kind, quantity, value, None
        if profile.uncounted:
            yield name, "", "", "not_counted", " ".join(profile.uncounted), None
        if profile.layout:
            for quantity, value in profile.device_memory._asdict().items():
                yield name, "device", "", f"{quantity}_bytes", value, None


def _models_table(profiles):
    """Returns header and rows of models, without empty columns."""
    cells = {}  # heading -> {model: text}
    for name, (profile, row) in profiles.items():
        for _, heading, ours, printed, show in _quantities(profile, row):
            for key, value in ((heading, ours), (f"{heading} (paper)", printed)):
                cell = cells.setdefault(key, {})
                if value is not None:
                    cell[name] = show(value)
    columns = {heading: cell for heading, cell in cells.items() if cell}
    rows = [[name, *(c.get(name, "") for c in columns.values())] for name in profiles]
    return ["model", *columns], rows


def _parts_table(profile):
    header = ["part", "kind", "parameters", "matrix products", "the rest"]
    parts = {**profile.parts, ("all", ""): profile.total}
    with_kinds = {part for part, kind in parts if kind}
    rows = [
        [
            name,
            kind or ("outside layers" if name in with_kinds else "all"),
            _millions(part.parameters),
            _scientific(part.matmul_flops),
            _scientific(part.rest_flops),
        ]
        for (name, kind), part in parts.items()
    ]
    return header, rows


def _millions(value):
    return f"{value / 1e6:,.2f}M" if value >= 1e4 else f"{value:,}"


def _size(value):
    return f"{value / 1e9:,.2f} GB" if value >= 1e9 else f"{value / 1e6:,.2f} MB"


def _scientific(value):
    return f"{value:.2e}".replace("e+", "e") if value else "0"


def _three_digits(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
