"""Serves runs and exports over HTTP: `remixer_tf serve`."""
