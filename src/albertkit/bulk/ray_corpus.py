"""The cutting of `albertkit corpus` on Ray: what `data/workers.py` does with processes of this machine, done by actors of a cluster.

In: blocks, the folder of a tokenizer. Out: each block with its `TokenizedDocuments`, in the order of the blocks, so that the corpus is the same byte for byte. Blocks are read,
and shards written, by the process that asks; text goes to the actors and token ids come back. The tokenizer's folder (inside that of the corpus) must have the
same path on every machine. A block whose actor dies is given to its successor.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from albertkit.bulk.local import ATTEMPTS
from albertkit.bulk.ray_engine import joined
from albertkit.data.document_tokenizer import DocumentTokenizer, TokenizedDocuments, TokenizeSettings
from albertkit.data.documents import Block
from albertkit.data.workers import WAITING, TokenizedBlocks
from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer


class TokenizerActor:
    """A `DocumentTokenizer` in a Ray process. An error of ours is given back, not raised, so that Ray does not take it for a dead worker."""

    def __init__(self, tokenizer: Path, settings: TokenizeSettings) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores have workers of their own
        self.cutter = DocumentTokenizer(Tokenizer.load(tokenizer, trusted=True), settings)

    def cut(self, block: Block) -> TokenizedDocuments | AlbertkitError:
        """The pieces of a block."""
        try:
            return self.cutter(block)
        except AlbertkitError as error:
            return error


def tokenize_on_ray(
    blocks: Iterable[Block], tokenizer: Path, settings: TokenizeSettings, workers: int = 1, address: str | None = None
) -> TokenizedBlocks:
    """As `tokenize_blocks`; a few blocks wait at each actor."""
    with joined(address, workers) as ray:
        kind = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=ATTEMPTS - 1)(TokenizerActor)
        actors = [kind.remote(tokenizer.absolute(), settings) for _ in range(workers)]
        waiting: deque[tuple[Block, Any]] = deque()
        try:
            for number, block in enumerate(blocks):
                if len(waiting) == WAITING * workers:
                    yield _received(ray, *waiting.popleft())
                waiting.append((block, actors[number % workers].cut.remote(block)))
            while waiting:
                yield _received(ray, *waiting.popleft())
        finally:
            for actor in actors:
                ray.kill(actor)


def _received(ray: Any, block: Block, awaited: Any) -> tuple[Block, TokenizedDocuments]:
    try:
        found = ray.get(awaited)
    except ray.exceptions.RayActorError as error:
        raise AlbertkitError(
            f"Ray's workers were ended again and again ({str(error)[:100]}); use fewer --workers"
        ) from None
    if isinstance(found, AlbertkitError):
        raise found
    return block, found
