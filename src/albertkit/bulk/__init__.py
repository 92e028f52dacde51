"""Bulk work: many input files → numbered parts → one output file per part, in local processes or on Ray.

`object_store.py` finds and opens files, `parts.py` plans parts and reads their rows, `worker.py` turns a part into
its output file, `bulk_run.py` manages the output folder, and `engines.py` decides which process does which part.
`spark.py` has functions for Spark's own tables.
"""
