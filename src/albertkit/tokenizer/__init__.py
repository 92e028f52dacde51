"""Text to ids, segments and character offsets, and back; vocabulary files to tokenizers.

In: a text (or a pair), and the files of a checkpoint: `tokenizer.json`, `spiece.model` (SentencePiece unigram, English
ALBERT) or `vocab.txt` (WordPiece, Chinese and Korean ALBERT), or a table of symbols (the phoneme model PL-BERT). The
files decide the kind. Out: an `Encoding`. Before this package: the `tokenizers` library; after it: everything that runs
or trains a model.

The unigram kind equals the original google-research code: its white space, NFKD, dropped accents and lower case, then
SentencePiece, then the rule that a piece such as "▁2010," becomes "▁2010" and ",". (The original does not turn `` and ''
into quotation marks; transformers does; we do not.) What is left out, all of it on purpose:

- Ties. Where two ways to cut a word have the same score ("888" is "8 88" or "88 8"), SentencePiece's choice depends on
  the 32-bit rounding of everything before it in the text; ours depends on the word alone. About one line of English
  Wikipedia in 10,000 holds such a word.
- A lone surrogate, which is not a character, is read as U+FFFD.
- `tokenizer.json` is for other programs. There the digit-comma pieces have their score lowered by 100, which is how
  transformers imitates the rule; reading the file lifts that again, so that ours stays exact. The library's own
  normalisation there differs from ours for rare characters (Hangul letters, a final sigma).

Special tokens written in a text, such as "[SEP]" or "<pad>", are ordinary text; `recognize_mask=True` recognises [MASK]
and nothing else.
"""

from albertkit.tokenizer.encoding import Encoding
from albertkit.tokenizer.tokenizer import Tokenizer
from albertkit.tokenizer.vocabulary import check_size

__all__ = ["Encoding", "Tokenizer", "check_size"]
