"""Making models, with torch: the one training loop (`loop.py`) and what is trained with it."""
