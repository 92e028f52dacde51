"""Keyword search in Qdrant: the words of a text as a sparse vector, one number per different word.

In: texts and queries. Out: indices, and weights as BM25 has them. Qdrant multiplies the weights by the rarity of each
word (IDF) when it searches. It knows no average length of texts, so `TYPICAL_WORDS` stands for it. Before this file:
`keywords.py`; after it: `qdrant.py`.
"""

from __future__ import annotations

import zlib
from collections import Counter
from itertools import pairwise

from albertkit.search.keywords import is_unspaced, plain_terms, plain_words

SATURATION, LENGTH_SHARE = 1.2, 0.75  # of BM25: k1 and b
TYPICAL_WORDS = 64  # words of a text whose length changes no weight


def text_weights(text: str) -> dict[int, float]:
    """The weight of each word of a text, and of each pair of neighbours in scripts without spaces.

    >>> sorted(text_weights("tea tea").values()) > sorted(text_weights("tea").values())
    True
    """
    words = plain_words(text).split()
    pairs = [f"{first} {second}" for first, second in pairwise(words) if is_unspaced(first) and is_unspaced(second)]
    length = 1 - LENGTH_SHARE + LENGTH_SHARE * len(words) / TYPICAL_WORDS
    counts = Counter(map(word_index, [*words, *pairs]))
    return {index: count * (SATURATION + 1) / (count + SATURATION * length) for index, count in counts.items()}


def query_weights(query: str) -> dict[int, float]:
    """Weight 1 for each word of a query."""
    return {word_index(term): 1.0 for term in plain_terms(query)}


def word_index(word: str) -> int:
    """The number of a word: its CRC-32, so that no vocabulary is stored. Few words share a number.

    >>> word_index("tea")
    2391201714
    """
    return zlib.crc32(word.encode())
