"""Tasks, without torch: examples to features, scores to results, results to metrics. `train/finetune.py` trains them,
`runtime/albert.py` uses them."""
