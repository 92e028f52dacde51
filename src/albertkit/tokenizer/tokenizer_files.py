"""The tokenizer files of a model folder: read as a `Vocabulary`, and written from one.

In: a folder that albertkit or transformers wrote for ALBERT. Out: a `Vocabulary`; and the reverse, files that
transformers opens. Before this file: `vocabulary.py`, and `tokenizer_json.py`, which makes the content of
`tokenizer.json`. After it: `tokenizer.py`.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from array import array
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError
from albertkit.file_io import read_json, write_json
from albertkit.tokenizer.tokenizer_json import BARE_MARK, PENALTY, to_json
from albertkit.tokenizer.vocabulary import (
    MAX_TOKENS,
    SPECIALS,
    USE_RIGHT_FILE,
    Vocabulary,
    check_size,
    check_tokens,
    is_digit_comma,
    read_bytes,
    read_spiece,
    read_vocab,
    symbols_vocabulary,
    wordpiece_vocabulary,
)
from albertkit.tokenizer.wordpiece import MAX_WORD_CHARACTERS

# --- reading ------------------------------------------------------------


def read_folder(folder: Path, vocab_size: int | None, trusted: bool) -> Vocabulary:
    """The vocabulary in a folder; see `Tokenizer.load`."""
    tokenizer_json, spiece, vocab = (folder / name for name in ("tokenizer.json", "spiece.model", "vocab.txt"))
    options = _read_options(folder / "tokenizer_config.json")
    lower, accents = options.get("do_lower_case", True), options.get("keep_accents", False)
    if tokenizer_json.is_file():
        path, vocabulary = tokenizer_json, read_tokenizer_json(tokenizer_json)
        if vocabulary.kind == "unigram" and spiece.is_file():
            tokens = vocabulary.tokens if trusted else read_spiece(spiece, lower=lower, keep_accents=accents).tokens
            if tokens != vocabulary.tokens:
                sizes = f"{len(vocabulary.tokens)} and {len(tokens)} tokens in tokenizer.json and spiece.model"
                raise AlbertkitError(f"{folder} has two different vocabularies ({sizes}). {USE_RIGHT_FILE}")
            vocabulary = dataclasses.replace(vocabulary, spiece=read_bytes(spiece))
    elif spiece.is_file() and vocab.is_file():
        rule = "English ALBERT needs the first, Chinese and Korean the second"
        raise AlbertkitError(f"{folder} contains both spiece.model and vocab.txt. Remove one: {rule}.")
    elif spiece.is_file():
        path, vocabulary = spiece, read_spiece(spiece, lower=lower, keep_accents=accents)
    elif vocab.is_file():
        for key in ("do_basic_tokenize", "tokenize_chinese_chars"):
            if not options.get(key, True):
                raise AlbertkitError(
                    f"{key} in {folder / 'tokenizer_config.json'} is False, and albertkit has only the rule of BERT, "
                    "which is True. Its tokens would be others than those of the model."
                )
        path, vocabulary = vocab, read_vocab(vocab, lower=lower, strip_accents=options.get("strip_accents"))
    else:
        raise AlbertkitError(f"{folder} contains no tokenizer. Copy tokenizer.json, spiece.model or vocab.txt there.")
    if vocab_size is not None:
        check_size(path, vocabulary, vocab_size)
    return vocabulary


def _read_options(path: Path) -> dict[str, bool]:
    """The rules for case, accents and words in a tokenizer_config.json."""
    data = read_json(path) if path.is_file() else {}
    keys = ("do_lower_case", "keep_accents", "strip_accents", "do_basic_tokenize", "tokenize_chinese_chars")
    options = {key: data[key] for key in keys if data.get(key) is not None}
    for key, value in options.items():
        if not isinstance(value, bool):
            raise AlbertkitError(f"{key} in {path} is {value!r}. Set it to true or false.")
    return options


def read_tokenizer_json(path: Path) -> Vocabulary:
    """The vocabulary and the rules in a `tokenizer.json`."""
    try:
        data = json.loads(read_bytes(path).decode("utf-8"))
        model, model_type = data["model"], data["model"].get("type")
        steps = _steps(data.get("normalizer"), "normalizers")
        names = {step["type"] for step in steps}
        if model_type == "Unigram":
            return _read_unigram(path, data, steps)
        if model_type not in ("WordPiece", "WordLevel"):
            raise AlbertkitError(f"{path} is a {model_type} model, not Unigram or WordPiece. {USE_RIGHT_FILE}")
        ids: dict[str, int] = model["vocab"]
        if not ids or not all(type(i) is int and 0 <= i < MAX_TOKENS for i in ids.values()):
            raise TypeError("its ids are not small whole numbers")
        tokens = [""] * (max(ids.values()) + 1)
        for token, index in ids.items():
            tokens[index] = token
        if model_type == "WordLevel":
            return symbols_vocabulary(tokens, lower="Lowercase" in names)
        if len(ids) != len(tokens):
            raise TypeError("some ids have no token or two")
        if len(steps) != 1 or names != {"BertNormalizer"}:
            raise TypeError(f"a WordPiece model needs a BertNormalizer, not {sorted(names)}")
        if model.get("continuing_subword_prefix") != "##":
            raise TypeError("its continuing_subword_prefix is not '##'")
        _check_bert_rules(steps[0], _steps(data.get("pre_tokenizer"), "pretokenizers"), model)
        lower, strip = bool(steps[0]["lowercase"]), steps[0].get("strip_accents")
        _special_token_ids(data, tokens)
        return wordpiece_vocabulary(tokens, path, lower, lower if strip is None else bool(strip))
    except AlbertkitError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError, OverflowError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise AlbertkitError(f"{path} is not a usable tokenizer.json ({reason}). Copy the original again.") from None


def _check_bert_rules(normalizer: dict[str, Any], words: list[dict[str, Any]], model: dict[str, Any]) -> None:
    """Raise unless the rules that `wordpiece.py` always follows are those of a WordPiece file."""
    if [step["type"] for step in words] != ["BertPreTokenizer"]:
        raise TypeError(f"a WordPiece model needs a BertPreTokenizer, not {[step['type'] for step in words]}")
    for step, key, expected in (
        (normalizer, "clean_text", True),
        (normalizer, "handle_chinese_chars", True),
        (model, "max_input_chars_per_word", MAX_WORD_CHARACTERS),
        (model, "unk_token", SPECIALS["wordpiece"][1]),
    ):
        if step.get(key, expected) != expected:
            raise TypeError(f"its {key} is {step[key]!r}, and albertkit has only the rule of BERT, {expected!r}")


def _steps(step: Any, key: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, in order; `key` is their name in a sequence."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [inner for nested in step[key] for inner in _steps(nested, key)]
    return [step]


def _special_token_ids(data: dict[str, Any], tokens: list[str]) -> set[int]:
    """The ids of the special added tokens, all of which must be in the vocabulary."""
    special = set()
    for added in data.get("added_tokens") or []:
        index = added["id"]
        if not 0 <= index < len(tokens) or tokens[index] != added["content"]:
            raise TypeError(f"its added token {added['content']!r} is not in the vocabulary")
        if added.get("special"):
            special.add(index)
    return special


def _read_unigram(path: Path, data: dict[str, Any], steps: list[dict[str, Any]]) -> Vocabulary:
    names = {step["type"] for step in steps}
    known = {"Replace", "NFKD", "NFKC", "NFC", "Nmt", "StripAccents", "Lowercase", "Precompiled", "Strip"}
    if names - known:
        raise TypeError(f"albertkit has no rule for its normalizer {sorted(names - known)[0]}")
    model, special = data["model"], SPECIALS["unigram"]
    tokens, scores = _scored_tokens(model["vocab"])
    words = _steps(data.get("pre_tokenizer"), "pretokenizers")
    blobs = [step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"]
    vocabulary = Vocabulary(
        kind="unigram",
        tokens=tokens,
        scores=scores,
        hidden=frozenset(tokens.index(name) for name in special if name in tokens) | _special_token_ids(data, tokens),
        unk_id=model.get("unk_id"),
        lower="Lowercase" in names,
        strip_accents=bool(names & {"StripAccents", "NFKD"}),
        charsmap=base64.b64decode(blobs[0], validate=True) if blobs else b"",
        split_scripts=any(step["type"] == "Split" and step["pattern"] == {"Regex": BARE_MARK} for step in words),
    )
    check_tokens(vocabulary, path)
    if vocabulary.unk_id != vocabulary.ids[special[1]] or model.get("byte_fallback"):
        raise TypeError("its unknown token is not <unk>, or it falls back to bytes")
    return vocabulary


def _scored_tokens(vocab: list[tuple[str, float]]) -> tuple[list[str], list[float]]:
    """Tokens and their scores, without the penalty that transformers gives to numbers with a comma."""
    tokens = [token for token, _ in vocab]
    scores = array("f", [score for _, score in vocab])  # a TypeError if one is no number
    "".join(tokens)  # a TypeError if one is no text
    if len(tokens) > MAX_TOKENS or not (math.isfinite(sum(scores)) and -1e6 < min(scores) <= max(scores) < 1e6):
        raise TypeError("its vocab is not a list of tokens with scores")
    for i in [i for i, score in enumerate(scores) if score < -0.75 * PENALTY]:
        if is_digit_comma(tokens[i]):
            scores[i] = vocab[i][1] + PENALTY
    return tokens, scores.tolist()


# --- writing ------------------------------------------------------------


def write_folder(vocabulary: Vocabulary, folder: Path, model_max_length: int, compact: bool) -> None:
    """Write the tokenizer files; see `Tokenizer.save`."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": model_max_length,
        "do_lower_case": vocabulary.lower,
        **({"keep_accents": not vocabulary.strip_accents} if vocabulary.kind == "unigram" else {}),
        **({"strip_accents": vocabulary.strip_accents} if vocabulary.kind == "wordpiece" else {}),
        **dict(zip(keys, SPECIALS.get(vocabulary.kind, vocabulary.tokens[:1]), strict=False)),
    }
    write_json(folder / "tokenizer_config.json", config)
    if vocabulary.spiece:
        (folder / "spiece.model").write_bytes(vocabulary.spiece)
        rules = {"lower": vocabulary.lower, "keep_accents": not vocabulary.strip_accents}
        if compact and read_spiece(folder / "spiece.model", **rules) == vocabulary:
            return
    (folder / "tokenizer.json").write_text(to_json(vocabulary), encoding="utf-8")
    if vocabulary.kind == "wordpiece":
        (folder / "vocab.txt").write_bytes("".join(token + "\n" for token in vocabulary.tokens).encode())
