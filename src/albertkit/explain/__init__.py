"""Explanations of predictions: word attributions, attention, and the prediction after each layer.

In: an `Albert` and a text. Out: an `Explanation`: numbers or an HTML page. Files in order: `explain_input.py` (texts as
tokens and words), `attribution.py` and `gradients.py` (word attributions), `activations.py` (attention),
`layer_predictions.py`, `explainer.py` (combines them), `views.py` (the page). Only `gradients.py` needs torch; it is
imported on use.
"""

from albertkit.explain.explain_input import ExplainInput, ExplainSettings
from albertkit.explain.explainer import Explainer, Explanation

__all__ = ["ExplainInput", "ExplainSettings", "Explainer", "Explanation"]
