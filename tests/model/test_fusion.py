"""Fusion: extra tokens stand where they should, torch and the runtime agree, and the page's example needs both sides."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.artifact import Artifact, write_artifact
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.model.albert_model import build_head
from albertkit.model.fusion import ExtraFeatures, Fusion
from tests.conftest import ROOT, tiny

TEXTS = [[2, 5, 6, 3], [2, 3], [2, 9, 8, 7, 6, 5, 3], [2, 11, 12, 3]]


def features(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 96), min_size=1, max_size=9), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(1, 2),
)
def test_extra_tokens_follow_the_first_token(texts, k, m):
    fusion = Fusion(tiny(), {"image": 6, "sound": 4})
    image, sound = features(0, len(texts), k, 6), features(1, len(texts), m, 4)
    plain = Batch.of(texts, [[0] * len(t) for t in texts])
    fused = fusion(plain, [ExtraFeatures("image", image, segment=1), ExtraFeatures("sound", sound)])
    assert fused.lengths == tuple(len(t) + k + m for t in texts)
    table = torch.nn.Embedding(97, 16)
    with torch.no_grad():
        words = fused.words(table).split(list(fused.lengths))
        wanted = torch.cat([fusion.start["image"](image), fusion.start["sound"](sound)], 1)
        for i, (row, text) in enumerate(zip(words, texts, strict=True)):
            torch.testing.assert_close(row[1 : 1 + k + m], wanted[i])
            torch.testing.assert_close(torch.cat([row[:1], row[1 + k + m :]]), table(torch.tensor(text)))
    for kinds, places, text in zip(
        fused.segments.split(list(fused.lengths)), fused.positions.split(list(fused.lengths)), texts, strict=True
    ):
        assert places.tolist() == list(range(len(text) + k + m))
        assert int(kinds.sum()) == k


def test_what_cannot_be_fused():
    fusion = Fusion(tiny(), {"image": 6})
    batch = Batch.of(TEXTS)
    for extra, why in (
        (ExtraFeatures("imagee", features(0, 4, 1, 6)), "did you mean 'image'"),
        (ExtraFeatures("image", features(0, 4, 1, 5)), r"must be \(4, k, 6\)"),
        (ExtraFeatures("image", features(0, 3, 1, 6)), "for 4 texts"),
        (ExtraFeatures("image", features(0, 4, 1, 6), segment=2), "segment=2 is not available"),
        (ExtraFeatures("image", features(0, 4, 39, 6)), "at most 40"),
    ):
        with pytest.raises(AlbertkitError, match=why):
            fusion(batch, extra)
    with pytest.raises(AlbertkitError, match="Pass a batch without them"):
        fusion(
            fusion(batch, ExtraFeatures("image", features(0, 4, 1, 6))), ExtraFeatures("image", features(0, 4, 1, 6))
        )
    assert fusion(batch, []) is batch


def test_the_gradient_reaches_the_projection():
    model = AlbertModel(tiny(), {"fusion": Fusion(tiny(), {"image": 6}), "classify": build_head("classify", tiny())})
    batch = model.heads["fusion"](Batch.of(TEXTS), ExtraFeatures("image", features(0, 4, 2, 6)))
    model(batch, heads=["classify"]).heads["classify"].logits.square().sum().backward()
    assert float(model.heads["fusion"].start["image"].weight.grad.abs().sum()) > 0


def test_a_stored_fusion_opens_again(tmp_path):
    config, kinds = tiny(), {"image": 6, "sound": 4}
    fusion = Fusion(config, kinds)
    write_artifact(Artifact(config, AlbertModel(config, {"fusion": fusion}).weights()), tmp_path / "m")
    again = AlbertModel.from_artifact(tmp_path / "m", heads={"fusion": Fusion(config, kinds)})
    torch.testing.assert_close(again.heads["fusion"].start["sound"].weight, fusion.start["sound"].weight)
    with pytest.raises(AlbertkitError, match="do not fit the model"):
        AlbertModel.from_artifact(tmp_path / "m", heads={"fusion": Fusion(config, {"image": 6})})


def test_the_example_of_the_page_needs_text_and_picture(tmp_path, monkeypatch):
    """The python blocks of the second half of docs/guides/own-layers.md, in order."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    space: dict = {"__name__": "page"}
    page = (ROOT / "docs" / "guides" / "own-layers.md").read_text(encoding="utf-8").split("\n## Combine text")[1]
    try:
        for block in re.findall(r"^```python\n(.*?)^```", page, re.S | re.M):
            exec(compile(block, "own-layers.md", "exec"), space)
    finally:
        torch.set_num_threads(threads)
    test, digits = space["test"], space["DIGITS"].target
    text_alone = best_accuracy([example.text for example in test], test)
    image_alone = best_accuracy([digits[n] for n in range(1400, 1797) for _ in space["QUESTIONS"]], test)
    assert text_alone < 0.56 and f"{image_alone:.2f}" == "0.80"
    assert space["accuracy"] > image_alone + 0.05
    correct = np.mean([answer == example.label for answer, example in zip(space["answers"], test, strict=True)])
    assert correct == pytest.approx(space["accuracy"], abs=0.005)


def best_accuracy(known: Sequence, examples: Sequence) -> float:
    """The accuracy of the most frequent label of each value that is known of the examples."""
    counts = Counter(zip(known, [example.label for example in examples], strict=True))
    best = Counter[object]()
    for (value, _), count in counts.items():
        best[value] = max(best[value], count)
    return sum(best.values()) / len(examples)
