"""Work on more texts than one process should do: input files → numbered parts → one output file a part, on any engine.

`files.py` finds and opens files, `parts.py` plans, `reading.py` reads the rows of a part, `work.py` turns a part into its output file, `run.py` keeps the
folder, and the engines (`local.py`, `ray_engine.py`) only decide which process does which part. `spark.py` is a function for Spark's own tables.
"""
