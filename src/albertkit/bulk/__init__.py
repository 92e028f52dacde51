"""Bulk processing: many input files → numbered parts → one output file per part, in local processes or on Ray.

`storage.py` is a disk or an object store. `object_store.py` finds and opens files, `parts.py` plans parts and reads
their rows, `part_files.py` writes the output file of a part, and `worker.py` computes it. `bulk_run.py` manages the
output folder, and `engines.py` assigns parts to processes. `spark.py` has functions for Spark tables.
"""
