"""The objective of training: losses, and means from sums."""
