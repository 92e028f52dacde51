"""The results of a search. `index.py` makes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchHit:
    """A search result.

    >>> from albertkit import Albert, Index, Record
    >>> index = Index.create("notes.idx", Albert())
    >>> index.add([Record("1", "The doctor is in."), Record("2", "The train was late.")])
    2
    >>> hit = index.search("where is a physician?", k=1)[0]
    >>> hit.id, hit.text
    ('1', 'The doctor is in.')
    >>> index.close()
    """

    id: str
    text: str
    score: float
    """The cosine of query and text, at most 1; in keyword mode, which needs no model, BM25."""
    source: str
    line: int
    matched: str
    """What matched: "meaning" (the vector), "words" (words of the query), or "both"."""


@dataclass(frozen=True)
class SearchResult:
    """The hits of a query, the best first.

    >>> from albertkit import SearchResult
    >>> SearchResult(hits=[], left_out=3).left_out
    3
    """

    hits: list[SearchHit]
    left_out: int
    """Texts among the k best that were left out, because they match by meaning only and are below the limit."""
