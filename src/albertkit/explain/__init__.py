"""Looking inside: what a model attends to, which words carry its prediction, how the prediction forms, and whether to believe that.

In: a model and a text. Out: an `Explanation`: numbers, a page, a picture. No torch, except `gradients.py`, which is imported when
integrated gradients are asked for. Order of the files: `subject.py` and `target.py` say what is explained, `variants.py` hides words,
`attribute.py` and `gradients.py` give words values, `attention.py` and `layers.py` look at the layers, `explainer.py` puts it together,
`explanation.py`, `page.py` and `picture.py` show it, `faithful.py` checks it.
"""

from albertkit.explain.explainer import Explainer, explain
from albertkit.explain.explanation import Explanation
from albertkit.explain.faithfulness import Faithfulness, faithfulness

__all__ = ["Explainer", "Explanation", "Faithfulness", "explain", "faithfulness"]
