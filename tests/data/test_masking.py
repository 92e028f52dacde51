"""The questions of pre-training against their specification: by hand where it can be, by statistics where it is
uniform.
"""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from albertkit.data.masking import (
    IGNORED,
    MaskedRows,
    SpecialIds,
    arrange_segments,
    choose_masks,
    mask_rows,
    random_key,
    uniform,
)

VOCABULARY = 1000
SPECIALS = SpecialIds(cls=2, sep=3, mask=4, words=torch.arange(5, VOCABULARY))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows_of(rows: int, width: int, word: float = 0.6, seed: int = 0, dtype=np.uint16) -> tuple[Tensor, Tensor, Tensor]:
    """Random rows of two segments as the loop sends them: (tokens, first, ordered), with the column that only a single
    text uses; `word` is the share of tokens that start one.
    """
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCABULARY, (rows, width + 1)).astype(dtype)
    bit = dtype(1 << (8 * np.dtype(dtype).itemsize - 1))
    ids |= np.where(rng.random((rows, width + 1)) < word, bit, dtype(0))
    signed = ids.view(np.int16 if dtype is np.uint16 else np.int32)
    first = rng.integers(1, width, rows).astype(np.int32)
    return torch.from_numpy(signed), torch.from_numpy(first), torch.from_numpy(rng.random(rows) < 0.7)


def laid_out(rows: tuple[Tensor, Tensor, Tensor], found: MaskedRows) -> tuple[Tensor, Tensor, Tensor]:
    """What stood there before masking: ids, word starts, specials."""
    ids, segments, starts, special = arrange_segments(*rows, found.order == 1, SPECIALS)
    assert torch.equal(segments, found.segments)
    return ids, starts, special


def asked_places(found: MaskedRows) -> Tensor:
    """(rows, length) bool: where a word is asked for."""
    out = torch.zeros(found.ids.numel(), dtype=torch.bool)
    out[found.positions[found.words != IGNORED]] = True
    return out.view_as(found.ids)


# By hand ---------------------------------------------------------------------------------------------------------

B = -(1 << 15)  # the highest bit of 16, in a signed number


def test_segments_are_arranged_with_special_tokens():
    """10+ 11 | 12 13+ 14 (a plus marks a word's start; the 99 is for single texts): both orders, in and out of one
    batch.
    """
    row = [10 + B, 11, 12, 13 + B, 14, 99]
    tokens = torch.tensor([row, row, row], dtype=torch.int16)
    first = torch.tensor([2, 2, 2], dtype=torch.int32)
    ordered = torch.tensor([True, True, False])
    swap = torch.tensor([False, True, True])
    ids, segments, starts, special = arrange_segments(tokens, first, ordered, swap, SPECIALS)
    plain = [2, 10, 11, 3, 12, 13, 14, 3]
    assert ids.tolist() == [plain, [2, 12, 13, 14, 3, 10, 11, 3], plain]  # what has no order is not swapped
    assert segments.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1]]
    one = [0, 1, 0, 0, 1, 1, 0, 0]  # 12 begins a segment, so what is left of its word counts as one
    assert starts.int().tolist() == [one, [0, 1, 1, 0, 0, 1, 0, 0], one]
    edges = [1, 0, 0, 1, 0, 0, 0, 1]
    assert special.int().tolist() == [edges, [1, 0, 0, 0, 1, 0, 0, 1], edges]


def test_a_single_text_has_one_segment_and_one_token_more():
    tokens = torch.tensor([[10 + B, 11, 12, 13 + B, 14, 99 + B]], dtype=torch.int16)
    no = torch.tensor([False])
    ids, segments, starts, special = arrange_segments(tokens, torch.tensor([6]), no, torch.tensor([True]), SPECIALS)
    assert ids.tolist() == [[2, 10, 11, 12, 13, 14, 99, 3]] and segments.sum() == 0
    assert starts.int().tolist() == [[0, 1, 0, 0, 1, 0, 1, 0]] and special.int().tolist() == [[1, 0, 0, 0, 0, 0, 0, 1]]
    found = mask_rows(tokens.expand(40, -1), torch.full((40,), 6), no.expand(40), random_key(0, 0, "cpu"), 0, SPECIALS)
    assert (found.order == IGNORED).all() and found.ids.shape == (40, 8)


def test_thirty_two_bit_tokens_keep_their_ids():
    high = np.array([[70_000 | 1 << 31, 65_536, 2**31 - 1, 5 | 1 << 31, 9]], np.uint32).view(np.int32)
    ids, _, starts, _ = arrange_segments(
        torch.from_numpy(high), torch.tensor([3]), torch.tensor([True]), torch.tensor([False]), SPECIALS
    )
    assert ids.tolist() == [[2, 70_000, 65_536, 2**31 - 1, 3, 5, 3]]
    assert starts.int().tolist() == [[0, 1, 0, 0, 0, 1, 0]]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_both_widths_of_tokens_are_masked_alike(dtype):
    wide, narrow = rows_of(20, 30, dtype=dtype), rows_of(20, 30)
    one, other = (mask_rows(*rows, random_key(0, 0, "cpu"), 0, SPECIALS) for rows in (wide, narrow))
    for name in ("ids", "segments", "positions", "words", "order"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


# Masked words ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_shares_of_masked_replaced_and_kept_tokens(rate):
    """15 % are asked; of those 80 % are hidden, 10 % replaced, 10 % stay; all else is left alone."""
    rows = rows_of(4000, 125)
    found = mask_rows(*rows, random_key(1, 2, "cpu"), 0, SPECIALS, rate)
    ids, _, special = laid_out(rows, found)
    asked = asked_places(found)
    total = int(asked.sum())
    assert abs(total / (4000 * 125) - rate) < 0.002
    assert not (asked & special).any()
    assert torch.equal(found.ids[~asked], ids[~asked])
    assert torch.equal(found.words[found.words != IGNORED], ids[asked])  # the right answers are the original ids
    hidden = found.ids[asked] == SPECIALS.mask
    stayed = found.ids[asked] == ids[asked]
    replaced = ~hidden & ~stayed
    for share, wanted in ((hidden, 0.8), (stayed, 0.1), (replaced, 0.1)):
        assert abs(share.sum() / total - wanted) < 0.01
    fates = torch.stack([hidden, stayed, replaced]).float()
    assert abs(float(np.corrcoef(fates[0], ids[asked])[0, 1])) < 0.02  # whatever the word


def test_every_row_is_masked_at_about_the_rate():
    """Not only on average: the budget is each row's own."""
    rows = rows_of(500, 125, word=1.0)
    found = mask_rows(*rows, random_key(0, 0, "cpu"), 0, SPECIALS)
    counts = asked_places(found).sum(1)
    assert counts.min() >= 16 and counts.max() <= 21  # 18.75, and at most two more or less with n-grams of three


def test_words_are_masked_whole():
    rows = rows_of(2000, 61, word=0.5)
    found = mask_rows(*rows, random_key(3, 0, "cpu"), 0, SPECIALS)
    _, starts, special = laid_out(rows, found)
    asked = asked_places(found)
    inside = ~starts & ~special
    inside[:, 0] = False
    assert torch.equal(asked[:, 1:][inside[:, 1:]], asked[:, :-1][inside[:, 1:]])
    assert asked.any() and (asked & inside).any()


def test_random_words_are_drawn_evenly_from_the_allowed_ones():
    allowed = torch.arange(7, 107, 2)
    specials = SpecialIds(2, 3, 4, allowed)
    rows = rows_of(4000, 125, seed=4)
    found = mask_rows(*rows, random_key(5, 6, "cpu"), 0, specials)
    ids, _, _, _ = arrange_segments(*rows, found.order == 1, specials)
    other = found.ids[(found.ids != ids) & (found.ids != specials.mask)]
    counts = torch.bincount(other, minlength=VOCABULARY)
    assert counts.sum() == counts[allowed].sum() > 5000
    expected = counts.sum() / len(allowed)
    assert float(((counts[allowed] - expected) ** 2 / expected).sum()) < 49 + 5 * (2 * 49) ** 0.5


def one_tile(rows: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Chosen tokens with room for one token a row: one n-gram at most, taken with the uniform 1/n. Words of one token."""
    length = width + 3
    special = torch.zeros(rows, length, dtype=torch.bool)
    special[:, [0, length // 2, length - 1]] = True
    edges = torch.zeros_like(special)
    edges[:, 1:] = special[:, :-1]
    draw = (random_key(seed, 0, "cpu"), torch.arange(rows))
    return choose_masks(~special, special, edges, draw, 1 / width), special


def test_n_grams_have_the_lengths_of_the_paper():
    """p(1) = 6/11, p(2) = 3/11, p(3) = 2/11, and each is one run of words in one segment."""
    chosen, special = one_tile(12_000, 253, seed=8)
    counts = chosen.sum(1)
    assert counts.max() == 3 and not (chosen & special).any()
    runs = (chosen[:, 1:] & ~chosen[:, :-1]).sum(1) + chosen[:, 0]
    assert runs.max() == 1
    weight = np.array([n * int((counts == n).sum()) for n in (1, 2, 3)], float)  # undo the uniform 1/n
    assert abs(weight / weight.sum() - np.array([6, 3, 2]) / 11).max() < 0.015
    places = np.flatnonzero(chosen.sum(0))  # and everywhere in the row
    assert len(places) == 253


def test_n_grams_count_words_not_tokens():
    """Words of four tokens: what is masked together is four, eight or twelve tokens."""
    rows, words = 3000, 30
    starts = torch.zeros(rows, 4 * words + 3, dtype=torch.bool)
    starts[:, 1:-2:4] = True
    special = torch.zeros_like(starts)
    special[:, [0, -2, -1]] = True
    edges = torch.zeros_like(starts)
    edges[:, 1] = True
    draw = (random_key(0, 0, "cpu"), torch.arange(rows))
    counts = choose_masks(starts, special, edges, draw, 4 / (4 * words)).sum(1)
    assert set(counts.tolist()) == {0, 4, 8, 12}


def test_masks_differ_from_step_to_step_and_row_to_row():
    row = rows_of(1, 125, word=1.0)
    rows = tuple(t.expand(200, *t.shape[1:]).contiguous() for t in row)
    rows = (rows[0], rows[1], torch.zeros(200, dtype=torch.bool))
    masks = [asked_places(mask_rows(*rows, random_key(0, step, "cpu"), 0, SPECIALS)) for step in (0, 1)]
    overlap = (masks[0] & masks[1]).sum() / masks[0].sum()
    assert abs(float(overlap) - 0.15) < 0.03  # as much as uniform gives
    assert abs(float((masks[0][0::2] & masks[0][1::2]).sum() / masks[0][0::2].sum()) - 0.15) < 0.03
    share = masks[0].float().mean(0)[1:-1]
    assert share[share > 0].min() > 0.05  # every token is asked at some time


def test_a_row_of_one_long_word_is_no_error():
    """The budget is far smaller than the word: it is taken now and then, and the answers that do not fit go unasked."""
    tokens = torch.full((400, 400), 9, dtype=torch.int16)
    first, ordered = torch.full((400,), 200), torch.ones(400, dtype=torch.bool)
    found = mask_rows(tokens, first, ordered, random_key(0, 0, "cpu"), 0, SPECIALS)
    hidden = (found.ids == SPECIALS.mask).sum(1)
    assert 0.1 < float((hidden > 0).float().mean()) < 0.5
    assert ((found.words == 9) | (found.words == IGNORED)).all() and found.positions.max() < found.ids.numel()


# Sentence order --------------------------------------------------------------------------------------------------


def test_half_of_the_ordered_rows_are_swapped_and_no_others():
    rows = rows_of(6000, 20)
    found = mask_rows(*rows, random_key(0, 7, "cpu"), 0, SPECIALS)
    ordered = rows[2]
    assert (found.order[~ordered] == IGNORED).all()
    asked = found.order[ordered]
    assert set(asked.tolist()) == {0, 1} and abs(float(asked.float().mean()) - 0.5) < 0.025
    ahead = (found.segments == 0).sum(1) - 2  # tokens before the middle [SEP]
    as_is = ahead == rows[1]
    other = ahead == 20 - rows[1]
    assert as_is[~ordered].all() and as_is[found.order == 0].all() and other[found.order == 1].all()


def test_a_label_of_one_means_swapped():
    tokens = torch.tensor([[10, 11, 12, 99]] * 50, dtype=torch.int16)
    found = mask_rows(
        tokens, torch.ones(50), torch.ones(50, dtype=torch.bool), random_key(0, 0, "cpu"), 0, SPECIALS, 1e-6
    )
    for ids, label in zip(found.ids.tolist(), found.order.tolist(), strict=True):
        assert ids == ([2, 11, 12, 3, 10, 3] if label else [2, 10, 3, 11, 12, 3])


# Chance ----------------------------------------------------------------------------------------------------------


def test_random_numbers_are_uniform():
    drawn = uniform(random_key(0, 0, "cpu"), torch.arange(2000), 512, 1).double()
    assert drawn.min() >= 0 and drawn.max() < 1
    n = drawn.numel()
    assert abs(float(drawn.mean()) - 0.5) < 4 * (1 / 12 / n) ** 0.5
    assert abs(float(drawn.var()) - 1 / 12) < 4 * (1 / 180 / n) ** 0.5
    counts = torch.bincount((drawn.flatten() * 256).long(), minlength=256).double()
    chi = float(((counts - n / 256) ** 2 / (n / 256)).sum())
    assert abs(chi - 255) < 5 * (2 * 255) ** 0.5
    low = torch.bincount((drawn.flatten() * 2**24).long() % 256, minlength=256).double()  # the low bits as well
    assert abs(float(((low - n / 256) ** 2 / (n / 256)).sum()) - 255) < 5 * (2 * 255) ** 0.5


def test_random_numbers_are_independent_of_purpose_row_column_and_step():
    rows = torch.arange(1000)
    base = uniform(random_key(0, 0, "cpu"), rows, 256, 1)
    others = {
        "purpose": uniform(random_key(0, 0, "cpu"), rows, 256, 2),
        "row": uniform(random_key(0, 0, "cpu"), rows + 1, 256, 1),
        "far row": uniform(random_key(0, 0, "cpu"), rows + 65536, 256, 1),
        "step": uniform(random_key(0, 1, "cpu"), rows, 256, 1),
        "seed": uniform(random_key(1, 0, "cpu"), rows, 256, 1),
        "column": base.roll(1, 1),
        "diagonal": base.roll((1, 1), (0, 1)),
    }
    bound = 4.5 / base.numel() ** 0.5
    for name, other in others.items():
        assert abs(float(np.corrcoef(base.flatten(), other.flatten())[0, 1])) < bound, name
        near = ((base - other).abs() < 0.01).double().mean()  # nor more equal than uniform makes them
        assert abs(float(near) - 0.0199) < 0.003, name


def test_sums_over_rows_and_columns_are_those_of_random_numbers():
    """A hash of row and column apart would show here: sums would spread more, or less, than independent draws do."""
    drawn = uniform(random_key(9, 9, "cpu"), torch.arange(1024), 1024, 3).double()
    for axis in (0, 1):
        spread = float(drawn.mean(axis).var() * 12 * 1024)
        assert abs(spread - 1) < 5 * (2 / 1024) ** 0.5
    blocks = (drawn - 0.5).view(512, 2, 512, 2)
    crossed = blocks[:, 0, :, 0] * blocks[:, 0, :, 1] * blocks[:, 1, :, 0] * blocks[:, 1, :, 1]
    assert abs(float(crossed.mean())) < 5 * (1 / 12) ** 2 / 512


def test_keys_differ():
    keys = {tuple(random_key(seed, step, "cpu").tolist()) for seed in (0, 1, 2, 2**62) for step in (0, 1, 2, 10**12)}
    assert len(keys) == 16
    assert all(0 <= number < 2**32 for pair in keys for number in pair)


# Parts -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(5, 40), st.integers(0, 10**6))
@settings(max_examples=40, derandomize=True)
def test_any_split_of_a_batch_is_masked_alike(parts, width, step):
    """However many processes and parts share a batch, each row gets the question it gets alone."""
    total = sum(parts)
    rows = rows_of(total, width, seed=step)
    stamp = random_key(11, step, "cpu")
    whole = mask_rows(*rows, stamp, 0, SPECIALS)
    asked = asked_places(whole)
    at = 0
    for size in parts:
        mine = slice(at, at + size)
        part = mask_rows(*(t[mine] for t in rows), stamp, torch.tensor(at), SPECIALS)
        assert torch.equal(part.ids, whole.ids[mine])
        assert torch.equal(part.segments, whole.segments[mine])
        assert torch.equal(part.order, whole.order[mine])
        assert torch.equal(asked_places(part), asked[mine])
        length = width + 3
        inside = (whole.positions >= at * length) & (whole.positions < (at + size) * length) & (whole.words != IGNORED)
        assert torch.equal(part.words[part.words != IGNORED], whole.words[inside])
        at += size
