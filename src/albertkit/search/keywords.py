"""Keyword search in an SQLite file: an FTS5 table with the words of each text, without the text.

In: a connection and texts or a query. Out: the slots with the best BM25. In scripts without spaces, each character is a
word, and a query consists of pairs of neighbours. So Chinese words of two characters are found without a dictionary.
Before this file: `folding.py`, which makes one word of the forms of a word.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
from pathlib import Path

from albertkit.search.folding import fold
from albertkit.search.vectors import Ranked, checksum, damage_error

TERMS = 64  # words of a query that are looked up
COMMON = 20  # a word in more than one of this many texts is common: slow and little informative
# Scripts written without spaces: Chinese, Japanese, Thai, Lao, Burmese, Khmer. Each character is a word.
UNSPACED = (
    "\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
)
_word = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")
_run = re.compile(rf"[{UNSPACED}]+|[^\W{UNSPACED}]+")
_character = re.compile(f"[{UNSPACED}]")
SCHEMA = """
CREATE VIRTUAL TABLE words USING fts5 (text, content='', tokenize='ascii');
"""


class KeywordTable:
    """The table of words. The caller manages transactions."""

    def __init__(self, sql: sqlite3.Connection, path: Path) -> None:
        self.sql, self.path, self.is_verified = sql, path, False
        sql.execute("CREATE VIRTUAL TABLE temp.counts USING fts5vocab (main, words, row)")

    def checksum(self) -> int:
        """The checksum of all rows of FTS5's tables."""
        total = checksum(*self.sql.execute("SELECT group_concat(id || ' ' || hex(sz)) FROM words_docsize").fetchone())
        for table, columns in (("words_data", "id, block"), ("words_idx", "segid, term, pgno")):
            for row in self.sql.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2"):
                total = checksum(total, *row)
        return total

    def verify(self, stored: tuple[str] | None) -> None:
        """Raise if the keywords differ from their checksum. An index has none while it is written, or after a crash."""
        if stored is None or self.is_verified:
            return
        if stored[0] != str(self.checksum()):
            raise damage_error(self.path, "the checksum of the keywords differs")
        self.is_verified = True

    def add(self, slot: int, text: str) -> None:
        """Add the words of a text to an empty slot."""
        self.sql.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (slot, plain_words(text)))

    def remove(self, slot: int, text: str) -> None:
        self.sql.execute("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", (slot, plain_words(text)))

    def best(self, query: str, k: int, rows: int) -> Ranked:
        """The k best rows with any word of the query. Common words are used only if no other word matches."""
        rare, common = split_terms({term: self._count(term) for term in plain_terms(query)}, max(1000, rows // COMMON))
        return self._match(rare, k) or self._match(common, k)

    def _match(self, terms: list[str], k: int) -> Ranked:
        query = "SELECT -rank, rowid FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT ?"
        return self.sql.execute(query, (" OR ".join(f'"{term}"' for term in terms), k)).fetchall() if terms else []

    def _count(self, term: str) -> int:
        """An upper bound of the number of texts with a term: the count of its rarest word."""
        query = "SELECT doc FROM temp.counts WHERE term = ?"
        rows = [self.sql.execute(query, (word,)).fetchone() for word in term.split()]
        return min((row[0] if row else 0 for row in rows), default=0)


def is_unspaced(word: str) -> bool:
    """Whether a word of `plain_words` is a character of a script without spaces.

    >>> is_unspaced("京"), is_unspaced("tea")
    (True, False)
    """
    return _character.match(word) is not None


def split_terms(counts: dict[str, int], limit: int) -> tuple[list[str], list[str]]:
    """Terms in at most so many texts, and the two rarest of the others.

    >>> split_terms({"the": 900, "cat": 3, "a": 800, "of": 700}, 100)
    (['cat'], ['of', 'a'])
    """
    rare = [term for term, count in counts.items() if count <= limit]
    common = sorted((term for term in counts if term not in rare), key=lambda term: counts[term])
    return rare, common[:2]


def plain_words(text: str) -> str:
    """The folded words of a text, separated by spaces, for a keyword index.

    >>> plain_words("Café-Bar, 臺北!")
    'cafe bar 台 北'
    """
    return " ".join(_word.findall(fold(text)))


def plain_terms(query: str) -> list[str]:
    """The terms of a query as words of `plain_words`: each word, and each pair of neighbours in scripts without spaces.

    >>> plain_terms("Café 臺北站")
    ['cafe', '台 北', '北 站']
    """
    terms: dict[str, None] = {}
    for run in _run.findall(fold(query)):
        if _character.match(run) and len(run) > 1:
            terms.update((f"{a} {b}", None) for a, b in itertools.pairwise(run))
        else:
            terms[run] = None
        if len(terms) >= TERMS:
            break
    return list(terms)[:TERMS]
