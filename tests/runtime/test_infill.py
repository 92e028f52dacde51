"""Infilling: lengths, the rounds of mask-predict against a plain restatement in torch, and the built-in model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.albert import Albert
from albertkit.artifact import Artifact, write_artifact
from albertkit.cli.entry_point import app
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.model.albert_model import build_head
from albertkit.runtime.mask_filling import blank_lengths, encode_masks, expand_blanks, fill_blanks, parse_length
from albertkit.tokenizer import Tokenizer
from tests.conftest import tiny
from tests.train.conftest import VOCAB


@pytest.fixture(scope="module")
def twins(tmp_path_factory) -> tuple[AlbertModel, Albert]:
    """A model in torch and in the runtime."""
    folder = tmp_path_factory.mktemp("infill")
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    torch.manual_seed(1)
    config = tiny(vocab_size=len(VOCAB), initializer_range=0.5)
    model = AlbertModel(config, {"mlm": build_head("mlm", config)}).eval()
    tokenizer = Tokenizer.from_vocab(folder / "vocab.txt")
    write_artifact(Artifact(config, model.weights(), tokenizer), folder / "m")
    return model, Albert(folder / "m", threads=1)


@pytest.fixture(scope="module")
def built_in() -> Albert:
    return Albert(threads=1)


def mask_predict(model: AlbertModel, ids: list[int], masks: list[int], rounds: int, mask: int, banned: list[int]):
    """The algorithm as its paper has it: fill all, then mask the n · (T - t) / T least sure again."""
    total = min(rounds, len(masks))
    sure, ids = dict.fromkeys(masks, 0.0), list(ids)
    now = list(masks)
    for turn in range(1, total + 1):
        for place in now:
            ids[place] = mask
        with torch.no_grad():
            chances = model(Batch.of([ids])).heads["mlm"].logits.double()
        chances[:, banned] = -torch.inf
        chances = chances.log_softmax(-1)
        for place in now:
            ids[place], sure[place] = int(chances[place].argmax()), float(chances[place].max())
        now = sorted(masks, key=lambda place: sure[place])[: len(masks) * (total - turn) // total]
    return ids, sum(sure.values()) / len(sure)


@settings(max_examples=25)
@given(st.integers(1, 7), st.integers(1, 4), st.integers(1, 12))
def test_rounds_are_those_of_the_paper(twins, first, second, rounds):
    model, albert = twins
    t = albert.tokenizer
    banned = [t.pad_id, t.cls_id, t.sep_id, t.mask_id, t.unk_id]
    found = albert.infill(f"red [MASK:{first}] cat oak [MASK:{second}] elm", rounds=rounds)[0]
    read, masks = encode_masks(albert, f"red {'[MASK]' * first} cat oak {'[MASK]' * second} elm", 1)
    ids, score = mask_predict(model, read.ids, masks, rounds, t.mask_id, banned)
    words = [ids[place] for place in masks]
    assert found.parts == (t.decode(words[:first]), t.decode(words[first:]))
    assert found.score == pytest.approx(score, abs=1e-4) and found.lengths == (first, second)
    assert found.text == f"red {found.parts[0]} cat oak {found.parts[1]} elm"


def test_the_best_length_has_the_best_mean(twins):
    _, albert = twins
    each = [albert.infill(f"red [MASK:{n}] cat")[0] for n in (1, 2, 3, 4)]
    best = albert.infill("red [MASK] cat", "1-4")[0]
    assert best == max(each, key=lambda found: found.score) == albert.infill("red [MASK:1-4] cat")[0]
    ranked = albert.infill("red [MASK] cat", "1-4", k=4)
    assert [f.score for f in ranked] == sorted((f.score for f in each), reverse=True)


def test_one_round_is_fill_mask(twins):
    _, albert = twins
    best = [next(g.word for g in top if g.word[0] != "[") for top in albert.fill_mask("red [MASK][MASK] oak", k=9)]
    t = albert.tokenizer
    found = albert.infill("red [MASK:2] oak", rounds=1)[0].parts[0]
    assert found == t.decode([t.id_of(word) or t.id_of(f"##{word}") for word in best])


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=3))
def test_lengths(spans):
    text = " and ".join(f"[MASK:{low}-{low + more}]" for low, more in spans)
    found = blank_lengths(text, (1, 1))
    assert len(found) == len(set(found)) == np.prod([more + 1 for _, more in spans])
    for lengths in found:
        assert all(low <= n <= low + more for n, (low, more) in zip(lengths, spans, strict=True))
        assert expand_blanks(text, lengths).count("[MASK]") == sum(lengths)
    assert fill_blanks(text, [r"\1" for _ in spans]) == " and ".join([r"\1"] * len(spans))


def test_what_is_wrong_with_a_length(twins):
    _, albert = twins
    for wrong in ("0", "3-2", "a", "65", "-1", "", "9" * 5000):
        with pytest.raises(AlbertkitError, match="a range such as 1-4"):
            parse_length(wrong)
        with pytest.raises(AlbertkitError, match="a range such as 1-4"):
            albert.infill(f"red [MASK] or [MASK:{wrong}]")
    with pytest.raises(AlbertkitError, match="has no"):
        albert.infill("red cat")
    with pytest.raises(AlbertkitError, match="combinations"):
        albert.infill("[MASK] [MASK] [MASK]", "1-10")
    with pytest.raises(AlbertkitError, match="fit into"):
        albert.infill("red [MASK:60]")
    with pytest.raises(AlbertkitError, match="fit into"):
        albert.infill("[MASK:64]" * 10_000)
    with pytest.raises(AlbertkitError, match="1,200,006 characters"):
        albert.infill("[MASK]" + "a " * 600_000)
    with pytest.raises(AlbertkitError, match="1,000,000,000 or more combinations"):
        albert.infill("[MASK:1-64] " * 300)
    assert blank_lengths("[MASK: 2 - 3 ]", (1, 1)) == [(2,), (3,)]
    with pytest.raises(AlbertkitError, match="rounds"):
        albert.infill("red [MASK]", rounds=0)


def test_the_built_in_model_fills_a_phrase(built_in):
    found = built_in.infill("The [MASK:3] of France is Paris.")[0]
    assert found.text.startswith("The ") and found.text.endswith(" of France is Paris.")
    assert len(found.parts[0].split()) >= 2 and "[MASK" not in found.text and -3 < found.score < 0


def test_from_the_command_line(twins, tmp_path):
    run = CliRunner().invoke(app, ["infill", "the [MASK] of france", "--length", "1-2", "-k", "2", "--json"])
    assert run.exit_code == 0, run.output
    found = [json.loads(line) for line in run.output.splitlines()]
    assert {tuple(f["lengths"]) for f in found} == {(1,), (2,)}
