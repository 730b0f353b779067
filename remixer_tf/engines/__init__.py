"""Engines run models: one folder for TensorFlow, one for JAX."""
