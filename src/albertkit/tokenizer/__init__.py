"""Text to token ids, segments and character offsets, and back.

In: a text or a pair of texts, and the files of a checkpoint, which determine the kind: SentencePiece unigram (English
ALBERT), WordPiece (Chinese and Korean ALBERT) or a table of symbols (PL-BERT). Out: an `Encoding`.

The unigram kind equals the original google-research code, with the rule that a token such as "▁2010," becomes "▁2010"
and ",". It differs on purpose where two segmentations of a word have the same score. SentencePiece's choice depends on
the rounding of all previous text, ours on the word alone. This affects one line of English Wikipedia in 10,000.
Special tokens written in a text, such as "[SEP]", are ordinary text; `recognize_mask=True` recognises [MASK] only.
"""

from albertkit.tokenizer.tokenizer import Encoding, Tokenizer
from albertkit.tokenizer.vocabulary import check_size

__all__ = ["Encoding", "Tokenizer", "check_size"]
