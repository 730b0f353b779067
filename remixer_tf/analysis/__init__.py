"""Costs of a model, comparisons of runs, reports on data, and pictures."""
