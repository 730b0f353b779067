"""Answers of a trained model, for lines of text and as a SavedModel."""
