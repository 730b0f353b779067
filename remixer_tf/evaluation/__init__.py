"""Evaluation: what is scored and how, its results, the best checkpoint."""
