"""A vocabulary cut down to the pieces that the texts of a domain use.

In: an artifact and texts of the domain. Out: an artifact with a smaller word table and the tokenizer that belongs to it. The
texts come apart into the same pieces as before, so their vectors are the same numbers; this is checked on every text.

Kept besides what the texts use: special tokens, the characters that other words can be spelt with (all of an alphabet; of
ideographs and syllables those the texts use), and what the rules of a tokenizer read (the unigram piece of the lowest score,
from which the score of unknown characters follows, and pieces like "2010,", which ALBERT takes apart).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from albertkit.artifact import Artifact
from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer, spiece
from albertkit.tokenizer.normalizer import SPACE
from albertkit.tokenizer.vocabulary import SPECIALS, Vocabulary, comma_after_digit

CHUNK = 4096
ALPHABETS_END = 0x2E80  # from here on there are thousands of characters, most of which a text does not use
LONGEST = 64  # characters of a piece


@dataclass(frozen=True)
class PrunedTokenizer:
    """A smaller vocabulary."""

    tokenizer: Tokenizer
    kept: np.ndarray
    """Old id of each new id, rising."""


def prune_vocabulary(artifact: Artifact, texts: Sequence[str]) -> Artifact:
    """The same model with the pieces that `texts` need."""
    tokenizer, config = artifact.tokenizer, artifact.config
    if tokenizer is None:
        raise AlbertkitError("this model has no tokenizer, so its vocabulary cannot be cut")
    made = prune_tokenizer(tokenizer, texts)
    table, bias = "encoder.embeddings.word.weight", "heads.mlm.bias"
    weights = {name: array[made.kept] if name in (table, bias) else array for name, array in artifact.weights.items()}
    small = made.tokenizer
    config = config.replace(
        vocab_size=small.vocab_size,
        pad_token_id=small.pad_id,
        bos_token_id=small.cls_id if small.cls_id is not None else small.pad_id,
        eos_token_id=small.sep_id if small.sep_id is not None else small.pad_id,
    )
    return Artifact(config, weights, small, artifact.meta)


def prune_tokenizer(tokenizer: Tokenizer, texts: Sequence[str]) -> PrunedTokenizer:
    """The tokenizer with the pieces that `texts` need, and which they are."""
    if tokenizer.kind == "phoneme":
        raise AlbertkitError("a table of symbols has one id a character, so there is nothing to cut")
    used = {i for ids in _ids(tokenizer, texts) for i in ids}
    if not used:
        raise AlbertkitError("the texts of the domain hold no text; give a file with one text a line")
    kept = used | _needed(tokenizer, used)
    made = _restricted(tokenizer, kept)
    wrong = [text for text, same in zip(texts, _same(tokenizer, made, texts), strict=True) if not same]
    if wrong:  # a word that was unknown as a whole is known by other pieces: keep all it could be cut into
        kept |= {i for text in wrong for i in _inside(tokenizer, text)}
        made = _restricted(tokenizer, kept)
        if not all(_same(tokenizer, made, texts)):
            raise AlbertkitError(f"the smaller vocabulary cuts {wrong[0][:40]!r} otherwise; leave this text out")
    return made


def _ids(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    for start in range(0, len(texts), CHUNK):
        yield from tokenizer.ids_batch(texts[start : start + CHUNK])


def _needed(tokenizer: Tokenizer, used: set[int]) -> set[int]:
    """What is kept although no text uses it."""
    made = tokenizer.vocabulary
    bare = [token.removeprefix("##").removeprefix(SPACE) for token in made.tokens]
    characters = {c for i in used for c in bare[i]}
    kept = set(made.hidden) | {made.ids[name] for name in SPECIALS[made.kind]}
    for i, letter in enumerate(bare):
        single = len(letter) == 1 and (ord(letter) < ALPHABETS_END or letter in characters)
        never = single and made.tokens[i] == f"##{letter}" and _ideograph(letter)  # an ideograph is a word by itself
        if single and not never:
            kept.add(i)
    if made.kind == "unigram":
        kept |= {made.ids[SPACE]} if SPACE in made.ids else set()
        kept.add(int(np.argmin(made.scores)))
        apart = tokenizer._unigram._apart
        kept |= {i for i, (new, _) in apart.items() if used.issuperset(new) and comma_after_digit(made.tokens[i])}
    return kept


def _ideograph(letter: str) -> bool:
    code = ord(letter)
    return (
        0x3400 <= code <= 0x4DBF or 0x4E00 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF or 0x20000 <= code <= 0x3FFFF
    )


def _restricted(tokenizer: Tokenizer, kept: set[int]) -> PrunedTokenizer:
    old = tokenizer.vocabulary
    order = sorted(kept)
    place = {i: at for at, i in enumerate(order)}
    made = Vocabulary(
        kind=old.kind,
        tokens=[old.tokens[i] for i in order],
        scores=[old.scores[i] for i in order] if old.scores else [],
        hidden=frozenset(place[i] for i in old.hidden),
        unk_id=None if old.unk_id is None else place[old.unk_id],
        lower=old.lower,
        strip_accents=old.strip_accents,
        charsmap=old.charsmap,
        spiece=spiece.only(old.spiece, kept) if old.spiece else b"",
    )
    return PrunedTokenizer(Tokenizer(made), np.array(order))


def _same(old: Tokenizer, new: PrunedTokenizer, texts: Sequence[str]) -> Iterator[bool]:
    """Whether each text has the same pieces as before."""
    for before, after in zip(_ids(old, texts), _ids(new.tokenizer, texts), strict=True):
        yield before == new.kept[after].tolist()


def _inside(tokenizer: Tokenizer, text: str) -> Iterator[int]:
    """Every piece that some stretch of the text could be."""
    normal = tokenizer._unigram.normalise(text)[0] if tokenizer.kind == "unigram" else (
        tokenizer._bert.normalizer.normalize_str(text)
    )  # fmt: skip
    for word in set(normal.split()):
        for start in range(len(word)):
            for end in range(start + 1, min(len(word), start + LONGEST) + 1):
                for before in ("", "##", SPACE):
                    found = tokenizer.id_of(before + word[start:end])
                    if found is not None:
                        yield found
