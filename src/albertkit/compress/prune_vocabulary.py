"""A model with fewer tokens: those that texts of a domain need. No torch.

In: an artifact and texts. Out: the artifact with a smaller vocabulary. `prune.py` calls it.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from albertkit.artifact import Artifact, require_tokenizer
from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer
from albertkit.tokenizer.normalizer import SPACE
from albertkit.tokenizer.spiece_file import select_spiece_tokens
from albertkit.tokenizer.unigram import Unigram
from albertkit.tokenizer.vocabulary import SPECIALS, is_digit_comma

ALPHABETS_END = 0x2E80  # scripts above have thousands of characters, most of which a text does not use
CJK = ("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH")  # each is a word and never has "##"
MAX_TOKEN_CHARACTERS = 64


def prune_vocabulary(artifact: Artifact, texts: Sequence[str]) -> Artifact:
    """The model with only the tokens that `texts` need.

    The texts are split into the same tokens as before, so their vectors do not change. This is checked.
    """
    config = artifact.config
    small, kept = prune_tokenizer(require_tokenizer(artifact), texts)
    by_token = ("encoder.embeddings.word.weight", "heads.mlm.bias")
    weights = {name: array[kept] if name in by_token else array for name, array in artifact.weights.items()}
    config = config.replace(
        vocab_size=small.vocab_size,
        pad_token_id=small.pad_id,
        bos_token_id=small.cls_id if small.cls_id is not None else small.pad_id,
        eos_token_id=small.sep_id if small.sep_id is not None else small.pad_id,
    )
    return dataclasses.replace(artifact, config=config, weights=weights, tokenizer=small)


def prune_tokenizer(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[Tokenizer, np.ndarray]:
    """The tokenizer with the tokens that `texts` need, and the old id of each new id, ascending."""
    if tokenizer.kind == "phoneme":
        raise AlbertkitError("a table of symbols has one id per character, so there is nothing to prune.")
    before = tokenizer.ids_batch(list(texts))
    used = {i for ids in before for i in ids}
    if not used:
        raise AlbertkitError("the texts of the domain are empty. Pass a file with one text per line.")
    kept = used | _required(tokenizer, used)
    small, old_ids = _restrict(tokenizer, kept)

    def changed_texts() -> list[str]:
        after = small.ids_batch(list(texts))
        return [text for text, a, b in zip(texts, before, after, strict=True) if a != old_ids[b].tolist()]

    changed = changed_texts()
    if changed:  # unknown words may be split differently now: keep all their possible tokens
        kept |= {i for text in changed for i in _substring_ids(tokenizer, text)}
        small, old_ids = _restrict(tokenizer, kept)
        if changed_texts():
            raise AlbertkitError(f"the smaller vocabulary splits {changed[0][:40]!r} differently. Omit this text.")
    return small, old_ids


def _required(tokenizer: Tokenizer, used: set[int]) -> set[int]:
    """Tokens that are kept although no text uses them.

    These are special tokens, characters to spell other words (all of an alphabet, or the ideographs in the texts), the
    unigram token of the lowest score, which sets the score of unknown characters, and tokens like "2010,".
    """
    vocabulary = tokenizer.vocabulary
    plain = [token.removeprefix("##").removeprefix(SPACE) for token in vocabulary.tokens]
    characters = {c for i in used for c in plain[i]}
    kept = set(vocabulary.hidden) | {vocabulary.ids[name] for name in SPECIALS[vocabulary.kind]}
    for i, letter in enumerate(plain):
        is_single = len(letter) == 1 and (ord(letter) < ALPHABETS_END or letter in characters)
        is_unused = is_single and vocabulary.tokens[i] == f"##{letter}" and unicodedata.name(letter, "").startswith(CJK)
        if is_single and not is_unused:
            kept.add(i)
    if isinstance(tokenizer.model, Unigram):
        kept |= {vocabulary.ids[SPACE]} if SPACE in vocabulary.ids else set()
        kept.add(int(np.argmin(vocabulary.scores)))
        splits = tokenizer.model.digit_comma_splits
        kept |= {i for i, (new, _) in splits.items() if used.issuperset(new) and is_digit_comma(vocabulary.tokens[i])}
    return kept


def _restrict(tokenizer: Tokenizer, kept: set[int]) -> tuple[Tokenizer, np.ndarray]:
    old = tokenizer.vocabulary
    order = sorted(kept)
    new_ids = {i: new_id for new_id, i in enumerate(order)}
    vocabulary = dataclasses.replace(
        old,
        tokens=[old.tokens[i] for i in order],
        scores=[old.scores[i] for i in order] if old.scores else [],
        hidden=frozenset(new_ids[i] for i in old.hidden),
        unk_id=None if old.unk_id is None else new_ids[old.unk_id],
        spiece=select_spiece_tokens(old.spiece, kept) if old.spiece else b"",
    )
    return Tokenizer(vocabulary), np.array(order)


def _substring_ids(tokenizer: Tokenizer, text: str) -> Iterator[int]:
    normal = tokenizer.model.normalize(text)[0] if tokenizer.model else ""
    for word in set(normal.split()):
        for start in range(len(word)):
            for end in range(start + 1, min(len(word), start + MAX_TOKEN_CHARACTERS) + 1):
                for prefix in ("", "##", SPACE):
                    token_id = tokenizer.id_of(prefix + word[start:end])
                    if token_id is not None:
                        yield token_id
