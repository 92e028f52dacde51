"""Rows from shards: full, in order, fair, seen evenly, and the same after a resume."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from albertkit.data import row_stream as module
from albertkit.data.row_stream import RowSpans, RowStream, StreamPosition, plan_rows
from albertkit.errors import AlbertkitError


@dataclass(frozen=True)
class Text:
    """A shard in memory. Each token is its own place, so that a row tells where it was read."""

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray

    @property
    def starts(self) -> np.ndarray:
        return np.concatenate([[0], self.sentences[:-1]])

    def document_of(self, places: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.sentences[self.documents - 1], places, side="right")


def text(documents: list[list[int]], offset: int = 0) -> Text:
    """Documents given as lengths of their sentences."""
    lengths = [n for document in documents for n in document]
    ends = np.cumsum(lengths)
    counts = np.cumsum([len(document) for document in documents])
    return Text(np.arange(ends[-1], dtype=np.uint32) + np.uint32(offset), ends, counts)


def drawn(documents: int, sentences: tuple[int, int], mean: float, seed: int = 0, offset: int = 0) -> Text:
    """A random shard: geometric lengths, so that no sentence knows of its neighbours."""
    rng = np.random.default_rng(seed)
    return text([rng.geometric(1 / mean, rng.integers(*sentences)).tolist() for _ in range(documents)], offset)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def check(shard: Text, spans: RowSpans, width: int) -> None:
    """What is true of any plan."""
    a0, a1, b0, b1 = spans.a0, spans.a1, spans.b0, spans.b1
    assert ((a1 - a0) + (b1 - b0) == width).all()
    assert (a0 >= 0).all() and (a0 < a1).all() and (a1 <= b0).all() and (b0 < b1).all()
    assert (b1 <= len(shard.tokens)).all()
    assert (a1 == b0)[~spans.ordered].all()  # where no question is asked, nothing is left out
    for x0, x1, y0, y1 in np.stack([a0, a1, b0, b1], 1)[spans.ordered].tolist():
        home = shard.document_of(np.array([x0, x1 - 1, y0, y1 - 1]))
        assert len(set(home.tolist())) == 1
        meets = shard.sentences[(shard.sentences >= x1) & (shard.sentences <= y0)]
        assert len(meets) >= 1  # they meet at a sentence's end
        for begin, end in ((x0, x1), (y0, y1)):
            whole = begin in shard.starts and end in shard.sentences
            assert whole or end - begin >= width // 2  # only the longer one is trimmed
        first_whole = x0 in shard.starts and x1 in shard.sentences
        second_whole = y0 in shard.starts and y1 in shard.sentences
        if x1 < y0:  # a gap comes from trimming alone, and never from leaving sentences out on both sides
            assert not (first_whole and second_whole) or len(meets) >= 2


lengths = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=1, max_size=12)


@given(lengths, st.integers(2, 60), st.integers(0, 3), st.integers(0, 99))
@settings(max_examples=150, derandomize=True)
def test_rows_are_full_and_segments_follow_each_other(documents, width, epoch, seed):
    shard = text(documents)
    check(shard, plan_rows(shard, width, epoch, rng(seed)), width)


def test_a_plan_worked_out_by_hand():
    """Sentences of four fill rows of eight without a rest: one cut is possible in each, and nothing is trimmed."""
    shard = text([[4, 4, 4, 4]])
    spans = plan_rows(shard, 8, 0, rng())
    found = sorted(zip(spans.a0, spans.a1, spans.b0, spans.b1, spans.ordered, strict=True))
    assert found == [(0, 4, 4, 8, True), (8, 12, 12, 16, True)]


def test_every_sentence_end_is_a_cut_when_nothing_is_trimmed():
    shard = text([[4, 3, 5]])
    cuts = {int(plan_rows(shard, 12, 0, rng(seed)).a1[0]) for seed in range(40)}
    assert cuts == {4, 7}


def test_the_middle_is_trimmed_from_the_longer_segment():
    """9 + 9 for a row of 14: the shorter side of 7 + 7 is reached from both, and what goes is at the front or the back."""
    shard = text([[9, 9]])
    fronts, gaps = set(), set()
    for seed in range(60):
        spans = plan_rows(shard, 14, 0, rng(seed))
        a0, a1, b0, b1 = (int(x[0]) for x in (spans.a0, spans.a1, spans.b0, spans.b1))
        assert spans.ordered[0] and a1 - a0 == b1 - b0 == 7 and a1 <= 9 <= b0
        fronts.add(a0)
        gaps.add(b0 - a1)
    assert fronts == {0, 1, 2} and gaps == {0, 1, 2, 3, 4}


def test_one_long_sentence_has_no_order_target():
    spans = plan_rows(text([[100]]), 20, 0, rng())
    assert len(spans) == 1 and not spans.ordered.any() and (spans.b1 - spans.a0 == 20).all()
    begun = {int(plan_rows(text([[100]]), 20, epoch, rng(epoch)).a0[0]) for epoch in range(40)}
    assert min(begun) < 20 and max(begun) > 60  # every part of it is seen sooner or later


def test_short_documents_continue_into_the_next():
    """No row has room in its own document: rows go over the edges, ask nothing, and are as many as the tokens fill."""
    shard = text([[min(n, 29) for n in document] for document in rng().geometric(1 / 8, (400, 2)).tolist()])
    rows = [plan_rows(shard, 61, epoch, rng(epoch)) for epoch in range(20)]
    for spans in rows:
        check(shard, spans, 61)
        assert not spans.ordered.any()
        document_ends = shard.sentences[shard.documents - 1]
        assert np.isin(spans.a1, document_ends).mean() > 0.95  # cut where the first document ends
    share = np.mean([len(spans) * 61 / len(shard.tokens) for spans in rows])
    assert 0.93 < share < 1.07


def test_a_short_document_at_the_end_is_seen():
    shard = text([[30, 30], [5]])
    seen = set()
    for seed in range(60):
        spans = plan_rows(shard, 20, 0, rng(seed))
        seen |= {place for a, b in zip(spans.b0, spans.b1, strict=True) for place in range(a, b)}
    assert {60, 61, 62, 63, 64} <= seen


def test_tokens_are_seen_once_an_epoch_wherever_they_stand():
    """About one row for each row's worth of tokens, and no corner of a document is passed over."""
    width, epochs = 61, 30
    shard = drawn(60, (30, 60), 10, seed=3)
    seen = np.zeros(len(shard.tokens), int)
    few = 0.0
    for epoch in range(epochs):
        spans = plan_rows(shard, width, epoch, rng(epoch))
        for begin, end in ((spans.a0, spans.a1), (spans.b0, spans.b1)):
            np.add.at(seen, np.concatenate([np.arange(x, y) for x, y in zip(begin, end, strict=True)]), 1)
        if epoch == 7:
            few = (seen > 0).mean()
    assert few > 0.98 and (seen > 0).mean() > 0.995
    assert 0.83 < seen.mean() / epochs < 1.0
    begins = np.concatenate([[0], shard.sentences[shard.documents - 1][:-1]])
    ends = shard.sentences[shard.documents - 1]
    heads = np.concatenate([np.arange(b, b + width) for b in begins])
    tails = np.concatenate([np.arange(e - width, e) for e in ends])
    for part in (heads, tails):
        assert 0.75 < seen[part].mean() / seen.mean() < 1.25


def test_a_giant_document_is_cut_whole_and_fast():
    shard = drawn(1, (40_000, 40_001), 20)
    spans = plan_rows(shard, 125, 0, rng())
    check(Text(shard.tokens, shard.sentences, shard.documents), _some(spans, 300), 125)
    covered = np.zeros(len(shard.tokens) + 1, int)
    np.add.at(covered, spans.a0, 1)
    np.add.at(covered, spans.b1, -1)
    assert (np.cumsum(covered) > 0).mean() > 0.9
    assert len(spans) * 125 > 0.8 * len(shard.tokens)


def _some(spans: RowSpans, rows: int) -> RowSpans:
    return RowSpans(*(getattr(spans, name)[:rows] for name in ("a0", "a1", "b0", "b1", "ordered")))


# Fairness --------------------------------------------------------------------------------------------------------


def shapes(shard: Text, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """What a reader sees of a segment without understanding it: length, first and last piece, sentences, clean edges."""
    first = np.searchsorted(shard.sentences, begin, side="right")
    last = np.searchsorted(shard.sentences, end - 1, side="right")
    columns = [
        end - begin,
        np.minimum(shard.sentences[first], end) - begin,
        end - np.maximum(shard.starts[last], begin),
        last - first + 1,
        shard.starts[first] == begin,
        shard.sentences[last] == end,
    ]
    return np.stack(columns, 1).astype(float)


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("width", [61, 125, 62])
def test_shape_does_not_reveal_the_order(width, epoch):
    """Lengths, whole and broken edges and sizes of sentences are the same for the first and for the second segment."""
    shard = drawn(15_000, (1, 30), 12, seed=5)
    spans = plan_rows(shard, width, epoch, rng(1))
    asked = spans.ordered
    assert asked.mean() > 0.5
    first = shapes(shard, spans.a0[asked], spans.a1[asked])
    second = shapes(shard, spans.b0[asked], spans.b1[asked])
    for column in range(first.shape[1]):
        assert abs(z_of(first[:, column] - second[:, column])) < 4, f"column {column} differs"
        for other in range(first.shape[1]):
            crossed = first[:, column] * second[:, other] - second[:, column] * first[:, other]
            assert abs(z_of(crossed)) < 4, f"columns {column} and {other} together differ"
    lengths = (spans.a1 - spans.a0)[asked]
    for size in (width // 2, width // 2 - 1, 10):  # where [SEP] stands tells nothing either
        assert abs(z_of((lengths == size).astype(float) - (lengths == width - size))) < 4


def z_of(differences: np.ndarray) -> float:
    """How many standard errors a mean is away from 0."""
    spread = differences.std()
    return 0.0 if spread == 0 else float(differences.mean() / spread * np.sqrt(len(differences)))


def test_a_classifier_cannot_guess_the_order_from_shape():
    from sklearn.ensemble import HistGradientBoostingClassifier

    shard = drawn(8_000, (1, 40), 15, seed=6)
    spans = plan_rows(shard, 125, 1, rng(2))
    asked = spans.ordered
    first = shapes(shard, spans.a0[asked], spans.a1[asked])
    second = shapes(shard, spans.b0[asked], spans.b1[asked])
    swap = rng(3).random(len(first)) < 0.5
    seen = np.where(swap[:, None], np.hstack([second, first]), np.hstack([first, second]))
    order = rng(4).permutation(len(seen))
    learn, judge = order[: len(order) // 2], order[len(order) // 2 :]
    model = HistGradientBoostingClassifier(max_iter=40, random_state=0).fit(seen[learn], swap[learn])
    assert model.score(seen[judge], swap[judge]) < 0.525  # unfair cuts were guessed at 0.60 to 0.70


# The stream ------------------------------------------------------------------------------------------------------

SHARDS = [drawn(30, (1, 20), 9, seed=n, offset=n * 1_000_000) for n in range(5)]


def same(one, other) -> None:
    for name in ("tokens", "first", "ordered"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


def test_rows_are_read_where_they_were_planned():
    rows = RowStream(SHARDS, 40, seed=1).take(300)
    assert rows.tokens.shape == (300, 38) and rows.tokens.dtype == np.uint32
    assert rows.first.min() >= 1 and rows.first.max() <= 36
    for tokens, first, ordered in zip(rows.tokens.tolist(), rows.first.tolist(), rows.ordered.tolist(), strict=True):
        a, b = tokens[:first], tokens[first:-1]
        assert a == list(range(a[0], a[0] + len(a))) and b == list(range(b[0], b[0] + len(b)))
        assert b[0] >= a[-1] + 1 and a[0] // 1_000_000 == b[-1] // 1_000_000
        assert ordered or b[0] == a[-1] + 1
    few = rows[5:9]
    assert len(few) == 4 and np.array_equal(few.tokens, rows.tokens[5:9])


def test_a_share_of_the_rows_is_one_text_without_a_gap():
    rows = RowStream(SHARDS, 40, seed=1, single=0.4).take(2000)
    alone = rows.first == 38
    assert 0.35 < alone.mean() < 0.45 and not rows.ordered[alone].any() and rows.first[~alone].max() <= 36
    steps = np.diff(rows.tokens[alone].astype(np.int64), axis=1)
    assert (steps == 1).all()
    few = RowStream(SHARDS, 40, seed=1).take(200)
    assert few.first.max() <= 36  # none are asked for


def test_every_epoch_cuts_anew():
    starts = []
    for epoch in range(4):
        stream = RowStream(SHARDS, 40, 3, position=StreamPosition(epoch))
        starts.append(sorted(stream.take(stream.rows_in_group).tokens[:, 0].tolist()))
    for one in range(4):
        for other in range(one):
            assert starts[one] != starts[other]


def test_the_same_seed_gives_the_same_rows_and_another_another():
    take = lambda seed: RowStream(SHARDS, 40, seed).take(100)  # noqa: E731
    same(take(3), take(3))
    assert not np.array_equal(take(3).tokens, take(4).tokens)


def test_an_epoch_shows_each_row_once_and_the_next_one_cuts_anew():
    stream = RowStream(SHARDS, 40, seed=1)
    size = stream.rows_in_group
    rows = stream.take(size)
    assert stream.position == StreamPosition(0, 0, size)
    keys = {(int(t[0]), int(t[-1]), int(f)) for t, f in zip(rows.tokens, rows.first, strict=True)}
    assert len(keys) > 0.97 * size  # a rest read together with what stands before it may give a row twice
    homes = np.array([t[0] // 1_000_000 for t in rows.tokens])
    assert (np.bincount(homes[: size // 2], minlength=5) > 0).all()  # shards are mixed, not read one after the other
    again = stream.take(size)
    assert stream.position.epoch in (1, 2)
    other = {(int(t[0]), int(t[-1]), int(f)) for t, f in zip(again.tokens, again.first, strict=True)}
    assert len(keys & other) < 0.3 * size


@given(st.lists(st.integers(1, 70), min_size=1, max_size=12), st.integers(0, 11), st.booleans(), st.integers(0, 9))
@settings(max_examples=40, derandomize=True)
def test_resuming_anywhere_gives_the_same_rows(takes, stop, grouped, seed):
    """Over the ends of groups and epochs as well."""
    before = module.GROUP_TOKENS
    module.GROUP_TOKENS = 2500 if grouped else before
    try:
        straight = RowStream(SHARDS, 40, seed)
        rows = [straight.take(n) for n in takes]
        stop = min(stop, len(takes))
        first = RowStream(SHARDS, 40, seed)
        for n in takes[:stop]:
            first.take(n)
        second = RowStream(SHARDS, 40, seed, position=StreamPosition(**vars(first.position)))
        for n, wanted in zip(takes[stop:], rows[stop:], strict=True):
            same(second.take(n), wanted)
        assert second.position == straight.position
    finally:
        module.GROUP_TOKENS = before


def test_groups_are_all_visited(monkeypatch):
    monkeypatch.setattr(module, "GROUP_TOKENS", 2500)
    stream = RowStream(SHARDS, 40, seed=0)
    groups, homes = set(), set()
    while stream.position.epoch == 0:
        rows = stream.take(1)
        groups.add(stream.position.group)
        homes |= set((rows.tokens[:, 0] // 1_000_000).tolist())
    assert len(groups) > 2 and homes == set(range(5))


@given(st.integers(1, 5), st.integers(1, 30), st.integers(1, 8), st.integers(0, 9))
@settings(max_examples=40, derandomize=True)
def test_shares_of_a_batch_do_not_overlap_and_make_the_whole(world, each, batches, seed):
    whole = RowStream(SHARDS, 40, seed)
    shares = [RowStream(SHARDS, 40, seed) for _ in range(world)]
    for _ in range(batches):
        wanted = whole.take(each * world)
        for rank, share in enumerate(shares):
            mine = slice(rank * each, (rank + 1) * each)
            same(share.take(each * world, mine), wanted[mine])
            assert share.position == whole.position


def test_a_small_shard_beside_a_large_one_is_no_error():
    small = text([[3, 4]], offset=9_000_000)
    rows = RowStream([small, SHARDS[0]], 40, seed=0).take(400)
    assert rows.tokens.max() < 9_000_000


def test_a_corpus_smaller_than_a_row_says_so():
    with pytest.raises(AlbertkitError, match="largest shard has 7 tokens, but a row needs 37.*smaller --length"):
        RowStream([text([[3, 4]])], 40, seed=0)
    with pytest.raises(AlbertkitError, match="has 0 tokens"):
        RowStream([], 40, seed=0)
    with pytest.raises(AlbertkitError, match="length=4 is too small: a row needs at least 5"):
        RowStream(SHARDS, 4, seed=0)
    assert RowStream(SHARDS, 5, seed=0).take(3).tokens.shape == (3, 3)


def test_the_smallest_corpus_gives_endless_rows():
    """One row's worth in three short documents: some epochs hold no row at all."""
    stream = RowStream([text([[10], [12], [15]])], 40, seed=0)
    rows = stream.take(20)
    assert len(rows) == 20 and stream.position.epoch >= 5
    assert (rows.tokens[:, :37] == np.arange(37)).all()
