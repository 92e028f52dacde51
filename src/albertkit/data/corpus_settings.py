"""What a corpus is made by, beside its inputs and its tokenizer: the options of `albertkit corpus`."""

from __future__ import annotations

from dataclasses import dataclass

from albertkit.errors import AlbertkitError, nearest

DEDUPE = ("documents", "paragraphs", "none")


@dataclass(frozen=True)
class Settings:
    """What a corpus is made by, beside its inputs and its tokenizer."""

    field: str | None = None
    """Field of JSONL files and column of Parquet files that holds the text; None means `text`."""
    dedupe: str = "documents"
    """What is kept once: documents, paragraphs or none."""
    min_tokens: int = 16
    """Documents with fewer tokens are dropped."""
    held_out: float = 0.005
    """Share of the documents that training never sees."""
    max_sentence: int = 512
    """Longer sentences are cut, in tokens."""
    shard_tokens: int = 16_000_000
    """The most tokens in a shard."""
    max_unknown: float = 0.2
    """The largest share of unknown tokens; more means that the vocabulary does not fit the text."""
    skip_bad: bool = False
    """Pass over lines that are no text and count them, instead of stopping."""

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
