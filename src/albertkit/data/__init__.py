"""Data: text → shards (`corpus.py`), shards → rows (`row_stream.py`), rows → masked rows (`masking.py`)."""
