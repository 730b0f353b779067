"""Checkpoints: reading and writing them, and weights to begin with."""
