"""What a model is made of, and pictures of what it has learned."""
