"""What a corpus will be, judged by the beginnings of a few inputs: for `--dry-run`.

In: inputs, a tokenizer, settings. Out: an `Estimate`. Beside `corpus.py`, which makes the corpus.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from albertkit.data.block_reader import CORPUS_FORMATS, blocks
from albertkit.data.corpus_settings import CorpusSettings
from albertkit.data.document_tokenizer import Cutter, Rules
from albertkit.data.shards import token_type
from albertkit.text_reader import find_text_files
from albertkit.tokenizer import Tokenizer

SAMPLED = 4  # inputs that are looked into


@dataclass(frozen=True)
class Estimate:
    """What a corpus will be, judged by a megabyte of a few inputs."""

    inputs: int
    bytes: int  # on disk, packed as they are
    tokens: int
    shards: int
    corpus_bytes: int


def estimate(texts: Sequence[Path | str], tokenizer: Tokenizer, settings: CorpusSettings) -> Estimate:
    """Read a little of the inputs and say what a corpus of all of them would be; writes nothing."""
    sources = find_text_files(texts, settings.text_column, CORPUS_FORMATS)
    cutter = Cutter(tokenizer, Rules(settings.max_sentence, skip_bad=settings.skip_bad))
    files = [source for source in sources if source.name != "-"]
    read = tokens = 0
    for source in files[:: max(1, len(files) // SAMPLED)][:SAMPLED]:
        some = list(itertools.islice(blocks([source], settings.text_column), 2))
        if some:  # reading the second block took from the disk what the first one holds
            read += some[1].read - some[0].read if len(some) == 2 else source.size
            tokens += len(cutter(some[0]).tokens)
    total = sum(source.size for source in files)
    tokens = tokens * total // max(read, 1)
    size = tokens * token_type(tokenizer.vocab_size).itemsize
    return Estimate(len(sources), total, tokens, -(-tokens // settings.shard_tokens), size)
