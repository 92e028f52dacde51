"""Golden results: numbers that a change of structure must not change.

Each `test_*.py` has a function `results()`, which computes named arrays from small fixed inputs. The arrays are stored
in `data/`, one file per area, written by

    python -m tests.golden.record            (all areas; or some: python -m tests.golden.record tasks http)

On the kind of CPU and with the versions they were recorded with (`data/environment.json`), results must be equal to the
bit. Elsewhere the same tests compare with a tolerance: sums have another order there. Hashes, and results whose text
or shape depends on numbers that are nearly equal, are then not compared.

`comparison.py` stores and compares, `material.py` makes the inputs. Tests go through the command line, `Albert` and the
files they write, and results are stored without the names of fields: names may change, values may not.
"""
