"""Models and indexes as classes of other frameworks: LangChain, LlamaIndex, Chroma and spaCy.

In: an `Albert` or an `Index`. Out: objects that these frameworks accept as their own. Each module needs its framework,
which an extra of the same name installs. `albertkit/sklearn.py` has the estimators for scikit-learn.
"""
