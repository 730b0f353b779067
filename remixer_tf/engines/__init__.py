"""What runs a model: one folder an engine, on TensorFlow or on JAX."""
