"""A vocabulary reduced to the tokens that the texts of a domain use; a part of `prune.py`.

In: an artifact and texts of the domain. Out: an artifact with a smaller word table, and its tokenizer. The texts are
split into the same tokens as before, so their vectors are the same numbers; this is checked on every text. Special
tokens, characters and the tokens that the rules of a tokenizer need are kept too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from albertkit.artifact import Artifact
from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer, spiece
from albertkit.tokenizer.normalizer import SPACE
from albertkit.tokenizer.vocabulary import SPECIALS, Vocabulary, is_digit_comma

CHUNK = 4096
ALPHABETS_END = 0x2E80  # from here on there are thousands of characters, most of which a text does not use
MAX_TOKEN_CHARACTERS = 64


@dataclass(frozen=True)
class PrunedTokenizer:
    """A tokenizer with a smaller vocabulary."""

    tokenizer: Tokenizer
    kept: np.ndarray
    """Old id of each new id, ascending."""


def prune_vocabulary(artifact: Artifact, texts: Sequence[str]) -> Artifact:
    """The model with the tokens that `texts` need."""
    tokenizer, config = artifact.tokenizer, artifact.config
    if tokenizer is None:
        raise AlbertkitError("this model has no tokenizer, so its vocabulary cannot be pruned. Convert it with one.")
    pruned = prune_tokenizer(tokenizer, texts)
    table, bias = "encoder.embeddings.word.weight", "heads.mlm.bias"
    weights = {name: array[pruned.kept] if name in (table, bias) else array for name, array in artifact.weights.items()}
    small = pruned.tokenizer
    config = config.replace(
        vocab_size=small.vocab_size,
        pad_token_id=small.pad_id,
        bos_token_id=small.cls_id if small.cls_id is not None else small.pad_id,
        eos_token_id=small.sep_id if small.sep_id is not None else small.pad_id,
    )
    return Artifact(config, weights, small, artifact.metadata)


def prune_tokenizer(tokenizer: Tokenizer, texts: Sequence[str]) -> PrunedTokenizer:
    """The tokenizer with the tokens that `texts` need, and their old ids."""
    if tokenizer.kind == "phoneme":
        raise AlbertkitError("a table of symbols has one id per character, so there is nothing to prune.")
    used = {i for ids in _ids(tokenizer, texts) for i in ids}
    if not used:
        raise AlbertkitError("the texts of the domain are empty. Pass a file with one text per line.")
    kept = used | _required(tokenizer, used)
    pruned = _restrict(tokenizer, kept)
    changed = [text for text, same in zip(texts, _unchanged(tokenizer, pruned, texts), strict=True) if not same]
    if changed:  # a word that was unknown as a whole has other tokens now: keep all that it could be split into
        kept |= {i for text in changed for i in _substring_ids(tokenizer, text)}
        pruned = _restrict(tokenizer, kept)
        if not all(_unchanged(tokenizer, pruned, texts)):
            raise AlbertkitError(f"the smaller vocabulary splits {changed[0][:40]!r} differently. Omit this text.")
    return pruned


def _ids(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    for start in range(0, len(texts), CHUNK):
        yield from tokenizer.ids_batch(texts[start : start + CHUNK])


def _required(tokenizer: Tokenizer, used: set[int]) -> set[int]:
    """Tokens that are kept although no text uses them.

    Special tokens; the characters that spell other words (of an alphabet all, of ideographs those in the texts); the
    unigram token of the lowest score, from which the score of unknown characters follows; and tokens like "2010,".
    """
    vocabulary = tokenizer.vocabulary
    plain = [token.removeprefix("##").removeprefix(SPACE) for token in vocabulary.tokens]
    characters = {c for i in used for c in plain[i]}
    kept = set(vocabulary.hidden) | {vocabulary.ids[name] for name in SPECIALS[vocabulary.kind]}
    for i, letter in enumerate(plain):
        is_single = len(letter) == 1 and (ord(letter) < ALPHABETS_END or letter in characters)
        is_unused = is_single and vocabulary.tokens[i] == f"##{letter}" and _is_ideograph(letter)  # always its own word
        if is_single and not is_unused:
            kept.add(i)
    if vocabulary.kind == "unigram":
        kept |= {vocabulary.ids[SPACE]} if SPACE in vocabulary.ids else set()
        kept.add(int(np.argmin(vocabulary.scores)))
        splits = tokenizer._unigram._digit_comma_splits
        kept |= {i for i, (new, _) in splits.items() if used.issuperset(new) and is_digit_comma(vocabulary.tokens[i])}
    return kept


def _is_ideograph(letter: str) -> bool:
    code = ord(letter)
    return (
        0x3400 <= code <= 0x4DBF or 0x4E00 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF or 0x20000 <= code <= 0x3FFFF
    )


def _restrict(tokenizer: Tokenizer, kept: set[int]) -> PrunedTokenizer:
    old = tokenizer.vocabulary
    order = sorted(kept)
    new_ids = {i: at for at, i in enumerate(order)}
    vocabulary = Vocabulary(
        kind=old.kind,
        tokens=[old.tokens[i] for i in order],
        scores=[old.scores[i] for i in order] if old.scores else [],
        hidden=frozenset(new_ids[i] for i in old.hidden),
        unk_id=None if old.unk_id is None else new_ids[old.unk_id],
        lower=old.lower,
        strip_accents=old.strip_accents,
        charsmap=old.charsmap,
        spiece=spiece.select_tokens(old.spiece, kept) if old.spiece else b"",
        split_scripts=old.split_scripts,
    )
    return PrunedTokenizer(Tokenizer(vocabulary), np.array(order))


def _unchanged(old: Tokenizer, new: PrunedTokenizer, texts: Sequence[str]) -> Iterator[bool]:
    """Whether each text has the same tokens as before."""
    for before, after in zip(_ids(old, texts), _ids(new.tokenizer, texts), strict=True):
        yield before == new.kept[after].tolist()


def _substring_ids(tokenizer: Tokenizer, text: str) -> Iterator[int]:
    """Every token that some part of the text could be."""
    if tokenizer.kind == "unigram":
        normal = tokenizer._unigram.normalize(text)[0]
    else:
        normal = tokenizer._bert.normalizer.normalize_str(text)
    for word in set(normal.split()):
        for start in range(len(word)):
            for end in range(start + 1, min(len(word), start + MAX_TOKEN_CHARACTERS) + 1):
                for prefix in ("", "##", SPACE):
                    found = tokenizer.id_of(prefix + word[start:end])
                    if found is not None:
                        yield found
