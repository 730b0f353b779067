"""Scores of checkpoints: on tasks, while training and after it, and their files."""
