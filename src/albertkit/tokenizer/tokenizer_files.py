"""The tokenizer files of a model folder, read and written together.

In: a folder, whose files decide the kind of tokenizer. Out: a `Vocabulary`; and the other way round. Before this file:
`vocabulary.py` and `tokenizer_json.py`, which know the single files; after it: `tokenizer.py`.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from albertkit.errors import AlbertkitError
from albertkit.tokenizer.tokenizer_json import read_json, to_json
from albertkit.tokenizer.vocabulary import SPECIALS, Vocabulary, check_size, read_bytes, read_spiece, read_vocab


def read(folder: Path, vocab_size: int | None, trusted: bool) -> Vocabulary:
    """The vocabulary in a folder, as `Tokenizer.load` has it."""
    whole, spiece, vocab = (folder / name for name in ("tokenizer.json", "spiece.model", "vocab.txt"))
    options = _options(folder / "tokenizer_config.json")
    lower, accents = options.get("do_lower_case", True), options.get("keep_accents", False)
    if whole.is_file():
        path, made = whole, read_json(whole)
        if made.kind == "unigram" and spiece.is_file():
            tokens = made.tokens if trusted else read_spiece(spiece, lower=lower, keep_accents=accents).tokens
            if tokens != made.tokens:
                raise AlbertkitError(
                    f"tokenizer.json and spiece.model in {folder} hold different vocabularies ({len(made.tokens)} and "
                    f"{len(tokens)} tokens): remove the one that does not belong to the checkpoint"
                )
            made = dataclasses.replace(made, spiece=read_bytes(spiece))
    elif spiece.is_file() and vocab.is_file():
        raise AlbertkitError(
            f"{folder} holds both spiece.model and vocab.txt: remove vocab.txt if the model is English ALBERT "
            "(SentencePiece), or spiece.model if it is Chinese or Korean ALBERT (WordPiece)"
        )
    elif spiece.is_file():
        path, made = spiece, read_spiece(spiece, lower=lower, keep_accents=accents)
    elif vocab.is_file():
        path, made = vocab, read_vocab(vocab, lower=lower, strip_accents=options.get("strip_accents"))
    else:
        raise AlbertkitError(
            f"{folder} holds no tokenizer: put tokenizer.json, spiece.model or vocab.txt of the checkpoint there"
        )
    if vocab_size is not None:
        check_size(path, made, vocab_size)
    return made


def _options(path: Path) -> dict[str, bool]:
    """What a tokenizer_config.json says about case and accents."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(read_bytes(path).decode("utf-8"))
        found = {k: data[k] for k in ("do_lower_case", "keep_accents", "strip_accents") if data.get(k) is not None}
    except AlbertkitError:
        raise
    except (ValueError, AttributeError, RecursionError) as error:
        raise AlbertkitError(f"{path} is not a JSON object ({error}): correct it or remove it") from None
    for key, value in found.items():
        if not isinstance(value, bool):
            raise AlbertkitError(f"{key} in {path} is {value!r} and must be true or false: correct it")
    return found


def write(made: Vocabulary, folder: Path, model_max_length: int, compact: bool = False) -> None:
    """Write tokenizer.json, tokenizer_config.json, and spiece.model or vocab.txt where there was one.

    compact: for albertkit alone, so tokenizer.json is left out where spiece.model says the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    keys = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": model_max_length,
        "do_lower_case": made.lower,
        **({"keep_accents": not made.strip_accents} if made.kind == "unigram" else {}),
        **({"strip_accents": made.strip_accents} if made.kind == "wordpiece" else {}),
        **dict(zip(keys, SPECIALS.get(made.kind, made.tokens[:1]), strict=False)),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if made.spiece:
        (folder / "spiece.model").write_bytes(made.spiece)
        alone = {"lower": made.lower, "keep_accents": not made.strip_accents}
        if compact and read_spiece(folder / "spiece.model", **alone) == made:
            return
    (folder / "tokenizer.json").write_text(to_json(made), encoding="utf-8")
    if made.kind == "wordpiece":
        (folder / "vocab.txt").write_bytes("".join(token + "\n" for token in made.tokens).encode())
