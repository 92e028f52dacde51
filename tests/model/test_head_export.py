"""A user's module as an ONNX graph: what can be stored, and what is refused before training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from albertkit.errors import AlbertkitError
from albertkit.model.head_export import compare_graph, export_head
from tests.custom_heads import AttentionHead

H = 16


class SelfAttention(nn.Module):
    """A layer of attention over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.dense = nn.Linear(H, 3 * H), nn.Linear(H, 3)

    def forward(self, hidden, mask):
        parts = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.mix(hidden).chunk(3, -1))
        context = F.scaled_dot_product_attention(*parts, attn_mask=mask[:, None, None, :])
        return self.dense(context.transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    """An LSTM in both directions, which reads no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.dense = nn.LSTM(H, 8, batch_first=True, bidirectional=True), nn.Linear(16, 3)

    def forward(self, hidden, mask):
        packed = nn.utils.rnn.pack_padded_sequence(hidden, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        unpack = nn.utils.rnn.pad_packed_sequence
        return self.dense(unpack(self.rnn(packed)[0], batch_first=True, total_length=hidden.shape[1])[0])


class Buffers(nn.Module):
    """Parameters of its own, a buffer that is stored, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(H, 3))
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("offset", torch.arange(3), persistent=False)

    def forward(self, hidden, mask):
        return hidden[:, 0] @ self.table * self.scale + self.offset


@pytest.mark.parametrize(
    ("name", "make"),
    [("tag", SelfAttention), ("tag", Recurrent), ("classify", Buffers), ("classify", lambda: AttentionHead(H, 3))],
)
def test_heads_of_many_kinds_can_be_stored(name, make):
    module = make()
    graph = export_head(name, module, H, 3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += torch.randn(parameter.shape)
    compare_graph(name, module, graph, H, 3)  # the graph does not depend on the weights


class Head(AttentionHead):
    def __init__(self) -> None:
        super().__init__(H, 3)


class IgnoresMask(Head):
    def forward(self, hidden, mask):
        return self.linear(hidden.mean(1))


class BranchesByLength(Head):
    def forward(self, hidden, mask):
        return super().forward(hidden, mask) * (2 if hidden.shape[1] > 8 else 1)


class ScoresTokens(Head):
    def forward(self, hidden, mask):
        return self.linear(hidden)


class ReturnsList(Head):
    def forward(self, hidden, mask):
        return [super().forward(hidden, mask)]


class Fails(Head):
    def forward(self, hidden, mask):
        raise RuntimeError("no such\nluck")


class Unknown(Head):
    def forward(self, hidden, mask):
        return torch.fft.fft(super().forward(hidden, mask)).real


class MultiHead(Head):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(H, 4, batch_first=True)

    def forward(self, hidden, mask):
        return super().forward(self.attention(hidden, hidden, hidden, key_padding_mask=~mask)[0], mask)


class Normalized(Head):
    def __init__(self) -> None:
        super().__init__()
        self.batch = nn.BatchNorm1d(H)


class Double(Head):
    def __init__(self) -> None:
        super().__init__()
        self.double()


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (IgnoresMask, "the scores of a text change with padding"),
        (BranchesByLength, r"its ONNX graph computes other scores for \(2, 11\) tokens"),
        (ScoresTokens, r"it returns \(3, 7, 3\) for \(3, 7\) tokens; \(texts, outputs\) is needed, here \(3, 3\)"),
        (ReturnsList, "it returns list"),
        (Fails, r"its forward fails for \(3, 7\) tokens \(no such\)"),
        (Unknown, r"torch cannot export it to ONNX \(.*fft"),
        (MultiHead, r"its graph fails for \(1, 2\) tokens"),
        (Normalized, "'batch.num_batches_tracked' has type torch.int64"),
        (Double, "has type torch.float64"),
        (lambda: nn.Identity(), "it has no parameters"),
    ],
)
def test_a_head_that_cannot_be_stored_is_refused(module, reason):
    with pytest.raises(AlbertkitError, match=f"cannot be stored: .*{reason}"):
        export_head("classify", module(), H, 3)


def test_the_number_of_outputs_and_the_name_are_checked():
    with pytest.raises(AlbertkitError, match=r"it returns \(3, 3\) .* here \(3, 4\)"):
        export_head("classify", Head(), H, 4)
    with pytest.raises(AlbertkitError, match="the head 'mlm' cannot be replaced"):
        export_head("mlm", Head(), H)


def test_the_file_contains_no_source_lines_and_is_the_same_each_time():
    first, second = export_head("classify", Head(), H, 3), export_head("classify", Head(), H, 3)
    assert first == second and b".py" not in first
