"""Compression of models (quantization, pruning, static models) and planning by cost."""
