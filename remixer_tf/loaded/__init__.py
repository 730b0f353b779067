"""Runs with their weights, to ask and to train from Python."""
