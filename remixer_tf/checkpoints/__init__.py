"""Checkpoints, and the other files of a run that appear whole."""
