"""The engine on JAX, which distributes over a mesh of devices."""
