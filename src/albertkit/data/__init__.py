"""Data: text to shards (`corpus.py`), shards to rows (`stream.py`), rows to questions (`masking.py`)."""
