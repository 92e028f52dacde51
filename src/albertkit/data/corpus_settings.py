"""`CorpusSettings`: how a corpus is made, each setting with the sentence that is also its `--help`."""

from __future__ import annotations

from dataclasses import dataclass

from albertkit.errors import AlbertkitError, nearest
from albertkit.options import setting

DEDUPE = ("documents", "paragraphs", "none")


@dataclass(frozen=True)
class CorpusSettings:
    """How a corpus is made from its inputs with its tokenizer."""

    text_column: str | None = setting(None, "JSON field or Parquet column with the text  [default: text]")
    held_out: float = setting(0.005, "Share of the documents kept out of training.")
    dedupe: str = setting("documents", "Remove duplicates of: documents, paragraphs or none.")
    min_tokens: int = setting(16, "Drop documents with fewer tokens.")
    skip_bad: bool = setting(False, "Skip and count bad lines instead of stopping.")
    max_unknown: float = setting(
        0.2, "Stop above this share of unknown tokens: the vocabulary does not fit the text.", advanced=True
    )
    max_sentence: int = setting(512, "Cut sentences with more tokens.", advanced=True)
    shard_tokens: int = setting(16_000_000, "Most tokens per shard.", advanced=True)

    def __post_init__(self) -> None:
        if self.dedupe not in DEDUPE:
            raise AlbertkitError(
                f"dedupe is {self.dedupe!r}{nearest(str(self.dedupe), DEDUPE)}; choose one of {', '.join(DEDUPE)}"
            )
        for name, least, most in (
            ("min_tokens", 1, 2**31),
            ("held_out", 0, 0.5),
            ("max_sentence", 16, 2**16),
            ("shard_tokens", self.max_sentence, 2**30),
            ("max_unknown", 0, 1),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise AlbertkitError(f"{name} is {value!r} and must be from {least:,} to {most:,}: choose another")
