"""Published weights: from other libraries' formats into a run, and back out."""
