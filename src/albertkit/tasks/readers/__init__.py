"""Readers of labelled files: one function per file format, from a path to examples."""
