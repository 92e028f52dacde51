"""Make `expected_tokens.jsonl` with the sentencepiece library: one {"text", "ids"} a line.

Run it from the root of the repository: `python tests/tokenizer/make_expected_tokens.py`. `reference` is the original
preprocess_text + SentencePiece + the digit-comma rule, written down a second time and independently of albertkit.
"""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

BY_HAND = """this is a test|This  is \t A\n Test|In 2010, 1,234,567 people (9.5%) paid £5, €6,50 or $7,000,000.|1,|1,2,3,|
x5,|a1,b2,|the 3,5 and 2,|2010,2011, 2012,|5²,|½, ¼ and ⅔|٣,|१२,|１２，３４|naïve café, Crème Brûlée|Ångström|İstanbul ISPARTA ı|
ß STRASSE ẞ|ΟΔΥΣΣΕΥΣ Σ ΑΣ ΣΑΣ.|ὈΔΥΣΣΕΎΣ|Привет, мир! ЁЖ Йод|你好，世界。|東京タワーへ行く|ｶﾞｷﾞ ｱｲｳ|ガギグ|한국어 텍스트|각가ᄀ|
مرحبا بالعالم|שָׁלוֹם|हिन्दी में|বাংলা কো|தமிழ் கொ|ไทย น้ำ|😀 😃👍🏽|👨‍👩‍👧‍👦 family|🇩🇪🇫🇷|❤️ ©️ ™|a\u200bb\u200cc\u200dd|
\ufeffBOM|soft\u00adhyphen|a\u2060b|left\u200eright\u200f|ﬁne ﬂow eﬃcient ﬅ|ＦＵＬＬ ｗｉｄｔｈ|Ⅷ ⅳ ℃ № ℡|x² + y³ = ∑|10 km² @ 5 µm|
“quoted” ‘single’ «french» „low“|``latex'' quotes|''|it's don't O'Neill's|rock 'n' roll|em—dash en–dash hy-phen minus−sign|...…‥|
(parentheses) [brackets] {braces} <tags>|[CLS] [SEP] [MASK] <pad> <unk>|<pad>|a_b __init__|http://example.com/a?b=c&d=%20|me@example.org|
C++ and C#|#hashtag @user|AT&T|U.S.A.|Mr. Smith, Ph.D.|3.14159|1e-12|0x1F|12:34:56|2020-01-31|+49 (0)30 123456|$1,000.50|100%|
pneumonoultramicroscopicsilicovolcanoconiosis|aaaaaaaaaaaaaaaaaaaaaaaaa|Donaudampfschifffahrtsgesellschaft|hahaha|xyzzyplugh|
\u00a0nbsp\u00a0|\u3000ideographic\u3000space|a\u2003b\u2009c|line\u2028sep\u2029para|\x1cfs\x1dgs\x1ers\x1fus|nul\x00char|bell\x07 del\x7f|
\x85next\x85line|▁|▁a|a▁|a ▁ b|▁▁x▁▁y▁▁|e\u0301 e\u0302\u0301|q\u0307\u0323|\u0301|¨ ´ ¸|ª º|ŀ ŉ ǆ Ǉ|ſ K Å|𝐁𝐨𝐥𝐝 𝒮𝒸𝓇𝒾𝓅𝓉 𝔽|𝚺 𝛴|①②③ ⒈ ⒜|㎏ ㍻ ㌔|㈱|
\ufffd|\uffff|\ue000 private|\U0010ffff|\U000e0001tag|𠀀𠀁|꙳|ᏣᎳᎩ|ᲐᲑ|Ⴀ|Ǆ|ᾼ|ŉ|ΐ|ﬀ|\u1e9e|..,,!!??|---|((()))|" " "|.|,|-|–|£|€||  |\n\n\t"""


def preprocess(text: str) -> str:
    text = unicodedata.normalize("NFKD", " ".join(text.strip().split()))
    return "".join(c for c in text if not unicodedata.combining(c)).lower()


def reference(model: Any, text: str) -> list[int]:
    """The ids that the original code gives."""
    pieces: list[str] = []
    for piece in model.encode(preprocess(text), out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            again = model.encode(piece[:-1].replace("▁", ""), out_type=str)
            if piece[0] != "▁" and again[0][0] == "▁":
                again = again[1:] if len(again[0]) == 1 else [again[0][1:], *again[1:]]
            pieces += [*again, ","]
        else:
            pieces.append(piece)
    return [model.piece_to_id(piece) for piece in pieces]


def main() -> None:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(
        model_file=str(HERE.parent.parent / "src" / "albertkit" / "models" / "small" / "spiece.model")
    )
    texts = BY_HAND.replace("|\n", "|").split("|")
    draw = random.Random(0)
    while len(texts) < 320:
        texts.append(" ".join(draw.choices(texts[:150], k=draw.randint(2, 5))))
    lines = [json.dumps({"text": text, "ids": reference(model, text)}) for text in dict.fromkeys(texts)]
    (HERE / "expected_tokens.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
