"""Training: strategies, the train step, checkpoints, and the loop over them."""
