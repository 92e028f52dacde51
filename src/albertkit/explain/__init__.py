"""Explanations: which words a prediction depends on, attention, and how the prediction forms layer by layer.

In: an `Albert` and a text. Out: an `Explanation`: numbers, an HTML page or a picture. Files in order:
`explain_input.py` and `target.py` (what is explained), `attribution.py` and `gradients.py` (values of words),
`activations.py` (attention), `layer_predictions.py`, `explainer.py` (all together), `views.py` (the result as a page
or a picture), `faithfulness.py` (its quality). Only `gradients.py` needs torch; it is imported on use.
"""

from albertkit.explain.explain_input import ExplainInput
from albertkit.explain.explainer import Explainer, ExplainSettings, Explanation
from albertkit.explain.faithfulness import Faithfulness, measure_faithfulness

__all__ = ["ExplainInput", "ExplainSettings", "Explainer", "Explanation", "Faithfulness", "measure_faithfulness"]
