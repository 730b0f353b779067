"""The models of runs, for lm-evaluation-harness."""
