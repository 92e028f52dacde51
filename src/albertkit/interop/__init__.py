"""Readers and writers of other formats; `convert.py` chooses the reader."""
