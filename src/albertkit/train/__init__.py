"""Training with torch: the training loop (`loop.py`) and the tasks that it trains."""
