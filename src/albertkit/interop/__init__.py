"""Readers and writers for other people's formats; `convert.py` chooses among them."""
