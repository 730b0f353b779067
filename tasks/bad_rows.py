"""Rows that a task cannot use: counted by kind and split, and told."""

import collections

from absl import logging

from remixer_tf.errors import UserError

_FIRST = 5  # line numbers that a report tells


def check_on_bad_rows(value):
    """Raises a ValueError unless it says what becomes of bad rows."""
    if value not in ("raise", "skip"):
        raise UserError(f"on_bad_rows must be 'raise' or 'skip'. Received: {value!r}.")


class BadRows:
    """The bad rows of a task, by its name."""

    def __init__(self, task):
        self._task = task
        self._lines = collections.defaultdict(list)  # (split, kind) -> line numbers

    def add(self, split, kind, line):
        """Counts a row: `kind` says what is wrong, `line` is its line in the file."""
        self._lines[split, kind].append(line)

    def count(self):
        """Returns how many bad rows there are."""
        return sum(map(len, self._lines.values()))

    def tell(self, files, rows, skip, how_to_skip):
        """Logs them if they are to be skipped, else raises a ValueError for them.

        Args:
            files: dictionary, split -> file.
            rows: int, how many rows there are, the bad ones among them.
            skip: bool.
            how_to_skip: str, the binding of gin.
        """
        if not self._lines:
            return
        if skip:
            logging.warning("%s", self._report(files, rows, "bad and skipped"))
            return
        raise UserError(
            f"{self._report(files, rows, 'bad')}\nCorrect them, or leave them out with "
            f"{how_to_skip}."
        )

    def _report(self, files, rows, handling):
        """The counts by split and kind, with the first few line numbers."""
        text = [f"{self._task}: {self.count():,} of {rows:,} rows are {handling}:"]
        for split, file in files.items():
            for (its_split, kind), lines in self._lines.items():
                if its_split == split:
                    first = ", ".join(map(str, sorted(lines)[:_FIRST]))
                    more = ", ..." if len(lines) > _FIRST else ""
                    text.append(
                        f"  {split}, {kind}: {len(lines):,} (line {first}{more} of "
                        f"{file})"
                    )
        return "\n".join(text)
