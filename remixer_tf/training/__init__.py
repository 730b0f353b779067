"""Training: the loop over an engine's steps, and its hooks."""
