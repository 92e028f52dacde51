"""Sentences into ids with word starts: equal to the tokenizer's, cut where they should be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.data import document_tokenizer as words
from albertkit.data.corpus_folder import CorpusSettings
from albertkit.data.document_tokenizer import DocumentTokenizer, hash64, word_start_table
from albertkit.data.documents import Block, BlockPosition, parse_documents
from albertkit.data.shards import token_ids, word_starts
from albertkit.tokenizer import Tokenizer
from tests.conftest import SPIECE, real
from tests.data.sample_texts import words as listed

ZH = [*"的一是不了在人有我他这中大来上国", *listed("##a ##b ##in ##g a b c in sing str ##ing , . ! ( ) 。 ， ？ e")]


def wordpiece(lower: bool = True) -> Tokenizer:
    from albertkit.tokenizer.vocabulary import wordpiece_vocabulary

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return Tokenizer(wordpiece_vocabulary(specials + ZH, "test", lower, lower))


def trained() -> Tokenizer:
    texts = [f"The {a} sees {b}, and (the) {a}'s {b}-{a} costs 1,000.50 or 2:30!" for a in TALK for b in TALK]
    return Tokenizer.train(texts, vocab_size=120)


TALK = listed("cat dog bird Haus maison über naïve 中国 北京 ありがとう")


@pytest.fixture(scope="module")
def english():
    return Tokenizer.from_spiece(SPIECE)


ODD = listed(
    "The cat's U.S. (1,000) 2010, well-known, 'tis [x]; 3:30 p.m. $5 100% a/b c++ ▁x i.e., Σας ﬁne über e\u0301 "
    "שמואל\u200e) 中国。 中,国 # @ = <b> [SEP] <pad> don''t !! ?' 1/2 x\u0338="
)

KINDS = {
    "english": lambda: Tokenizer.from_spiece(SPIECE),
    "cased": lambda: Tokenizer.from_spiece(SPIECE, lower=False),
    "accents": lambda: Tokenizer.from_spiece(SPIECE, keep_accents=True),
    "trained": trained,
    "wordpiece": wordpiece,
    "wordpiece cased": lambda: wordpiece(lower=False),
}


def rows(fast: words.WordTokenizer, texts: list[str]) -> list[list[int]]:
    data, lengths = fast(texts)
    ends = np.cumsum(lengths)
    return [row.tolist() for row in np.split(np.frombuffer(data, np.uint16), ends)[:-1]]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_tokenizer(kind):
    tokenizer = KINDS[kind]()
    plain = np.arange(tokenizer.vocab_size, dtype=np.uint16)
    fast = words.WordTokenizer(tokenizer, plain)

    @settings(max_examples=120)
    @given(
        st.lists(
            st.one_of(
                st.text(max_size=40),
                st.text(alphabet="aBc1 ,.-('\")!?:;/=\u0301\u0338\u200e\u00a0▁\u3000中é\x1f\t", max_size=30),
                st.lists(
                    st.sampled_from(ODD),
                    max_size=8,
                ).map(" ".join),
            ),
            max_size=4,
        )
    )
    def check(texts):
        texts = [text.encode("utf-8", "replace").decode() for text in texts]
        if tokenizer.kind == "wordpiece":
            texts = [text.replace("\n", " ") for text in texts]
        assert rows(fast, texts) == tokenizer.ids_batch(texts)

    check()
    hidden = ["\0", "a \0 b", "\0c d", "\0▁e"]
    assert rows(fast, hidden) == tokenizer.ids_batch(hidden)


def test_a_small_cache_changes_no_result(english, monkeypatch):
    monkeypatch.setattr(words, "CACHED_CHARACTERS", 50)
    monkeypatch.setattr(words, "LOOKUP_SENTENCES", 3)
    texts = [f"The {i % 7} (cats), {i % 3} dogs and {i} birds." for i in range(60)]
    fast = words.WordTokenizer(english, np.arange(30000, dtype=np.uint16))
    assert rows(fast, texts) == english.ids_batch(texts)
    assert len(fast.cache) < 60


def cut(tokenizer, text, **rules):
    block = Block("t", "text", "text", BlockPosition(), BlockPosition(), 0, text.encode())
    return DocumentTokenizer(tokenizer, CorpusSettings(**rules))(block)


def marked(tokenizer, text):
    """The pieces of a text, with "|" before each word start."""
    made = cut(tokenizer, text)
    pieces = tokenizer.tokens(token_ids(made.tokens).tolist())
    return "".join("|" * start + piece for start, piece in zip(word_starts(made.tokens).tolist(), pieces, strict=True))


def test_word_starts_of_the_english_vocabulary(english):
    assert marked(english, "Unbelievable, isn't it?") == "|▁unbelievable|,|▁isn|'t|▁it|?"
    assert marked(english, "She paid (almost) $4.50.") == "|▁she|▁paid|▁|(almost|)|▁$4|.50|."
    table = word_start_table(english)
    for piece in ("▁the", "▁", ",", "(", "...", "?'", "£", "–", "▁2010,"):
        if piece in english.vocabulary.ids:
            assert table[english.id_of(piece)], piece
    for piece in ("ing", "s", "<unk>", "[CLS]", "10", "'s", "a"):
        if piece in english.vocabulary.ids:
            assert not table[english.id_of(piece)], piece


def test_the_first_token_of_a_sentence_starts_a_word(english):
    made = cut(english, "He ran. ½ of it. ok\nσ")
    firsts = np.cumsum(made.sentences) - made.sentences
    assert word_starts(made.tokens)[firsts].all()


def test_word_starts_of_wordpiece():
    assert marked(wordpiece(), "string 中国，我在 a!") == "|str##ing|中|国|，|我|在|a|!"


def test_word_starts_of_scripts_without_spaces():
    tokenizer = trained()
    table = word_start_table(tokenizer)
    for token, starts in zip(tokenizer.vocabulary.tokens, table.tolist(), strict=True):
        if token[0] in "中国北京ありがと":
            assert starts
        elif token[0].isalpha() and token[0].isascii():
            assert not starts


def test_hangul_words_begin_at_spaces():
    tokenizer = Tokenizer.train([f"나는 학교에 간다 {i} 친구를 만난다" for i in range(200)], vocab_size=60)
    table = word_start_table(tokenizer)
    assert not any(table[i] for i, token in enumerate(tokenizer.vocabulary.tokens) if "가" <= token[0] <= "힣")


def test_the_real_chinese_vocabulary():
    tokenizer = Tokenizer.load(real("zh-tiny"))
    assert marked(tokenizer, "他在2019年买了iPhone。") == "|他|在|2019|年|买|了|iphone|。"


def test_counts_of_tokens_and_sentences_agree(english):
    text = "One two. Three four five.\nSix.\n\n\n  \nSeven eight? Nine!\n\u200e\n"
    made = cut(english, text)
    assert made.documents.tolist() == [3, 2]
    assert made.sentences.sum() == len(made.tokens) and made.documents.sum() == len(made.sentences)
    assert (made.sentences > 0).all()
    assert made.hashes.tolist() == [
        hash64("One two. Three four five.\nSix."),
        hash64("Seven eight? Nine!\n\u200e"),
    ]
    empty = cut(english, "\n\n")
    assert not len(empty.tokens) and not len(empty.documents)


def test_a_long_sentence_is_cut_before_a_word(english):
    text = "antidisestablishmentarianism " * 40
    whole = cut(english, text)
    made = cut(english, text, max_sentence=16)
    assert (token_ids(made.tokens) == token_ids(whole.tokens)).all() and len(whole.sentences) == 1
    assert made.sentences.max() <= 16 and made.documents.tolist() == [len(made.sentences)]
    ends = np.cumsum(made.sentences)[:-1]
    assert word_starts(whole.tokens)[ends].all()
    solid = cut(english, "x" * 300, max_sentence=16)  # one word: cut all the same
    assert solid.sentences.max() == 16 and word_starts(solid.tokens).sum() == len(solid.sentences)


def test_unknown_tokens_are_counted():
    assert cut(wordpiece(), "我 龘 龘 他").unknown == 2


def test_sums_of_runs_may_be_empty():
    assert words.run_sums(np.array([1, 2, 3]), np.array([0, 2, 0, 1])).tolist() == [0, 3, 0, 3]
    assert words.run_sums(np.zeros(0, np.int64), np.array([0, 0])).tolist() == [0, 0]


def test_a_large_vocabulary_takes_32_bits(english, monkeypatch):
    monkeypatch.setattr("albertkit.data.shards.UINT16_VOCABULARY", 1000)
    made = cut(english, "He ran.")
    assert made.tokens.dtype == np.uint32 and made.tokens[0] >> 31 == 1
    assert token_ids(made.tokens).tolist() == english.ids_batch(["He ran."])[0]


def test_documents_of_a_block_are_lists_of_paragraphs():
    block = Block("t", "text", "text", BlockPosition(), BlockPosition(), 0, "\ufeffa\r\n b \r\n\r\n\t\r\nc".encode())
    assert parse_documents(block).paragraphs == [["a", "b"], ["c"]]
