"""Explanations: which words a prediction depends on, attention, and how the prediction forms layer by layer.

In: an `Albert` and a text. Out: an `Explanation`: numbers or an HTML page. Files in order: `explain_input.py` (texts as
tokens and words), `attribution.py` and `gradients.py` (values of words), `activations.py` (attention),
`layer_predictions.py`, `explainer.py` (all together), `views.py` (the page). Only `gradients.py` needs torch; it is
imported on use.
"""

from albertkit.explain.explain_input import ExplainInput, ExplainSettings
from albertkit.explain.explainer import Explainer, Explanation

__all__ = ["ExplainInput", "ExplainSettings", "Explainer", "Explanation"]
