"""Bulk processing: many input files → numbered parts → one output file per part, in local processes or on Ray.

`object_store.py` finds and opens files, `parts.py` plans parts and reads their rows, `worker.py` computes the output
file of a part, `bulk_run.py` manages the output folder, and `engines.py` assigns parts to processes. `spark.py` has
functions for Spark tables.
"""
