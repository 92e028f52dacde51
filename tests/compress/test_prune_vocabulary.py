"""A vocabulary cut to a domain: the same pieces and the same vectors for its texts, in every file format."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from albertkit.albert import Albert
from albertkit.artifact import Artifact, read_artifact, write_artifact
from albertkit.compress.prune import PruneSettings, prune
from albertkit.compress.prune_vocabulary import prune_tokenizer, prune_vocabulary
from albertkit.compress.quantize import quantize
from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer
from tests.conftest import SPIECE, tiny
from tests.test_albert import make

CHINESE = [
    "[PAD]", "[unused1]", "[unused2]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"我你是北京", "##京", *"abc", "##a", "##b", "##c",
    "ab", "##bc", "abc", "1", "##1", ",", "。", "cat", "##s", "##at", "do", "##g",
]  # fmt: skip
DOMAIN = ["In 2010, the cats sat.", "On 1,000 mats; naïve dogs – 12,5 % – ran!", "ümlaut \u4f60\u597d", "▁odd ▁ text"]


@pytest.fixture(scope="module")
def unigram():
    return Tokenizer.from_spiece(SPIECE)


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(CHINESE) + "\n", encoding="utf-8")
    return Tokenizer.from_vocab(path)


def pieces(tokenizer: Tokenizer, texts) -> list[list[str]]:
    return [tokenizer.tokens(e.ids) for e in tokenizer.encode_batch(list(texts))]


words = st.sampled_from(
    ["2010,", "1,000", "the", "cats", "naïve", "12,5%", "x,", "3,", "你好", "ß", "(a)", "▁", "unbelievably"]
)
english = st.lists(st.one_of(words, st.text(max_size=6)), max_size=8).map(" ".join)


@pytest.mark.slow
@given(st.lists(english, min_size=1, max_size=5))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_unigram_texts_keep_their_tokens(unigram, texts):
    texts = [*texts, "the end"]
    made, kept = prune_tokenizer(unigram, texts)
    assert pieces(made, texts) == pieces(unigram, texts)
    assert [unigram.tokens([i])[0] for i in kept] == made.vocabulary.tokens
    assert made.vocab_size < 1000 and made.tokens([0, 1, 2, 3, 4]) == unigram.tokens([0, 1, 2, 3, 4])


chinese = st.lists(
    st.sampled_from([*"我你是北京abc1,。龘", "cats", "dogs", "abcd", "ab cat", "zz", " "]), max_size=12
).map("".join)


@given(st.lists(chinese, min_size=1, max_size=6))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_wordpiece_texts_keep_their_tokens(wordpiece, texts):
    """Unknown words too: a word that has no pieces must not suddenly get some."""
    texts = [*texts, "我 cat"]
    made, _ = prune_tokenizer(wordpiece, texts)
    assert pieces(made, texts) == pieces(wordpiece, texts)
    assert "[unused1]" not in made.vocabulary.tokens and made.pad_id == 0


def test_other_words_can_still_be_spelt(unigram):
    made, _ = prune_tokenizer(unigram, DOMAIN)
    for text in ("zebra crossings", "quick brown fox; 345!", "in 1999, he left"):
        encoding = made.encode(text)
        assert encoding.unknown_fraction == 0 and made.decode(encoding.ids) == unigram.decode(unigram.encode(text).ids)


def test_tokenizer_files_agree(unigram, tmp_path):
    """tokenizer.json, spiece.model, the sentencepiece package and transformers' reader all say the same."""
    made, _ = prune_tokenizer(unigram, DOMAIN)
    made.save(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint() == made.fingerprint()
    assert Tokenizer.from_spiece(tmp_path / "spiece.model").vocabulary.tokens == made.vocabulary.tokens
    sentencepiece = pytest.importorskip("sentencepiece")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert processor.get_piece_size() == made.vocab_size
    assert processor.encode("the cats ran", out_type=str) == made.tokens(made.ids_batch(["the cats ran"])[0])
    from tokenizers import Tokenizer as Rust

    assert (
        Rust.from_file(str(tmp_path / "tokenizer.json")).encode("the cats ran").ids == made.encode("the cats ran").ids
    )


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_vectors_are_the_same_numbers(kind, unigram, wordpiece, tmp_path):
    tokenizer, texts = (unigram, DOMAIN) if kind == "unigram" else (wordpiece, ["我是北京", "cats and abc, 龘"])
    whole = make(tiny(vocab_size=tokenizer.vocab_size + 3))
    whole = Artifact(whole.config, whole.weights, tokenizer)
    write_artifact(whole, tmp_path / "whole")
    report = prune(tmp_path / "whole", tmp_path / "small", PruneSettings(vocabulary=texts))
    first, second = Albert(tmp_path / "whole", threads=1), Albert(tmp_path / "small", threads=1)
    assert np.array_equal(first.embed(texts), second.embed(texts))
    assert report.vocabulary == second.tokenizer.vocab_size == second.config.vocab_size < tokenizer.vocab_size
    assert len(read_artifact(tmp_path / "small").weights["heads.mlm.bias"]) == report.vocabulary
    guesses = second.fill_mask("the [MASK] sat" if kind == "unigram" else "我[MASK]北京", k=3)[0]
    assert all(g.word for g in guesses)
    other = Albert(tmp_path / "small", device="torch")
    assert np.abs(second.embed(texts) - other.embed(texts)).max() < 1e-5
    quantize(tmp_path / "small", tmp_path / "int8", 8)
    assert (Albert(tmp_path / "int8", threads=1).embed(texts) * second.embed(texts)).sum(1).min() > 0.99


def test_a_small_vocabulary_opens_in_transformers(unigram, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    write_artifact(make(tiny(vocab_size=3000)), tmp_path / "whole")
    prune(tmp_path / "whole", tmp_path / "small", PruneSettings(vocabulary=DOMAIN))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "small")
    model = transformers.AutoModel.from_pretrained(tmp_path / "small").eval()
    with torch.no_grad():
        theirs = model(**tokenizer(DOMAIN[0], return_tensors="pt")).last_hidden_state[0].numpy()
    assert np.abs(Albert(tmp_path / "small").token_vectors(DOMAIN[0]).vectors - theirs).max() < 1e-5


def test_bad_requests(unigram):
    with pytest.raises(AlbertkitError, match="are empty"):
        prune_tokenizer(unigram, ["", " "])
    with pytest.raises(AlbertkitError, match="one id per character"):
        prune_tokenizer(Tokenizer.from_symbols("$abc"), ["abc"])
    artifact = make(tiny(), heads=())
    with pytest.raises(AlbertkitError, match="has no tokenizer"):
        prune_vocabulary(Artifact(artifact.config, artifact.weights), ["a"])


def test_cosines_are_of_the_written_model(tmp_path):
    """Vectors are compared after words were cut, as each model cuts the texts: for other texts little is left."""
    artifact = make(tiny(vocab_size=3000))
    write_artifact(artifact, tmp_path / "whole")
    own = prune(tmp_path / "whole", tmp_path / "own", PruneSettings(vocabulary=DOMAIN * 5))
    assert own.cosine_least > 0.9999 and own.text_kind == "lines of the vocabulary"
    assert own.parameters_before == sum(a.size for a in artifact.weights.values()) > own.parameters
    others = [f"zebras wander beyond {n}" for n in ("seven", "twelve")] * 10
    told = prune(tmp_path / "whole", tmp_path / "other", PruneSettings(vocabulary=DOMAIN), others)
    vectors = [Albert(tmp_path / name, threads=1).embed(others[::10]) for name in ("whole", "other")]
    assert told.cosine_mean == pytest.approx(float((vectors[0] * vectors[1]).sum(1).mean()), abs=1e-4)
    assert told.cosine_mean < 0.99 and told.text_kind == "texts"
