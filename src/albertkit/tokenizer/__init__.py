"""Text to token ids, segments and character offsets, and back.

In: a text or a pair of texts, and the files of a checkpoint, which decide the kind: SentencePiece unigram (English
ALBERT), WordPiece (Chinese and Korean ALBERT) or a table of symbols (PL-BERT). Out: an `Encoding`.

The unigram kind equals the original google-research code: its white space, NFKD, dropped accents and lower case, then
SentencePiece, then the rule that a token such as "▁2010," becomes "▁2010" and ",". Deliberate differences:

- Where two segmentations of a word have the same score ("888" is "8 88" or "88 8"), SentencePiece's choice depends on
  the rounding of everything before it in the text; ours depends on the word alone. About one line of English
  Wikipedia in 10,000 contains such a word.
- A lone surrogate, which is not a character, is read as U+FFFD.
- `tokenizer.json` is for other programs. There the digit-comma tokens have their score lowered by 100, which is how
  transformers imitates the rule; reading the file restores the score.

Special tokens written in a text, such as "[SEP]", are ordinary text; `recognize_mask=True` recognises [MASK] only.
"""

from albertkit.tokenizer.tokenizer import Encoding, Tokenizer
from albertkit.tokenizer.vocabulary import check_size

__all__ = ["Encoding", "Tokenizer", "check_size"]
