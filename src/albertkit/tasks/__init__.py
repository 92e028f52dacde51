"""Tasks, without torch: examples to features, scores to results, results to metrics. `train/finetune_task.py` trains them,
`albert.py` uses them."""
