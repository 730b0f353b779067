"""What training minimises and what it counts: losses, and metrics from sums."""
