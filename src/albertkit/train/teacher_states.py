"""Looking into a teacher while a student learns: hidden states after every layer, and queries, keys and values of the last attention.

In: a model folder of ours, or of any BERT-like encoder that transformers opens, and a `Batch`. Out: `LayerStates`, packed like the batch. Teacher and student
must cut text alike, since their tokens are compared one by one. Next: `imitate.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.artifact import Artifact
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.model.attention import Attention
from albertkit.model.encoder import Encoded
from albertkit.tokenizer import Tokenizer

PLAIN = {"head_size", "brightmart_layout", "scale_embedding"}  # options that leave attention what it is
PARTS = {"query": ("query", "q_lin"), "key": ("key", "k_lin"), "value": ("value", "v_lin")}
SAMPLE = 64  # texts on which two tokenizers are compared


@dataclass(frozen=True)
class LayerStates:
    """What a model computed on the way."""

    layers: tuple[Tensor, ...]
    """Hidden states after the embeddings and after each layer, each (tokens, H)."""
    attention: tuple[Tensor, Tensor, Tensor] | None = None
    """Queries, keys and values of the last layer, each (tokens, heads, d)."""


@contextmanager
def record_attention(model: nn.Module) -> Iterator[Callable[[], tuple[Tensor, Tensor, Tensor]]]:
    """Inside the block, what a call gives are the queries, keys and values of the last attention that was computed."""
    found: list[tuple[Any, Tensor]] = []

    def note(module: nn.Module, given: tuple[Any, ...]) -> None:
        found[:] = [(module, given[0])]

    def parts() -> tuple[Tensor, Tensor, Tensor]:
        module, hidden = found[0]
        query, key, value = (
            F.linear(hidden.float(), part.weight, part.bias).unflatten(-1, (module.heads, -1))
            for part in (module.query, module.key, module.value)
        )
        return query, key, value

    hooks = [m.register_forward_pre_hook(note) for m in model.modules() if isinstance(m, Attention)]
    try:
        yield parts
    finally:
        for hook in hooks:
            hook.remove()


def require_plain_attention(artifact: Artifact, who: str) -> None:
    """Refuse models whose attention is not softmax(QKᵀ/√d)·V over all tokens."""
    odd = sorted(set(artifact.config.options.active()) - PLAIN)
    if odd:
        raise AlbertkitError(
            f"the {who} has the option {odd[0]}, and attention is compared for plain layers only; leave out 'attention', and learn from hidden"
        )


class AlbertTeacher(nn.Module):
    """A teacher that is a model of ours."""

    def __init__(self, artifact: Artifact, attention: bool = False) -> None:
        super().__init__()
        if attention:
            require_plain_attention(artifact, "teacher")
        encoder = {n: a for n, a in artifact.weights.items() if n.startswith("encoder.")}
        self.model = AlbertModel.from_artifact(Artifact(artifact.config, encoder, None)).requires_grad_(False)
        self.width, self.attention = artifact.config.hidden_size, attention
        self.longest = artifact.config.max_position_embeddings

    def forward(self, batch: Batch) -> tuple[LayerStates, Encoded]:
        with record_attention(self.model) as parts:
            encoded = self.model.encoder(batch, keep_layers=True)
            return LayerStates(encoded.layers, parts() if self.attention else None), encoded


def max_positions(model: Any) -> int:
    """Tokens that an encoder of transformers reads at once; RoBERTa and its like count from behind the position of the padding."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return getattr(model.config, "max_position_embeddings", None) or 512


class TransformersTeacher(nn.Module):
    """A teacher that transformers opened."""

    def __init__(self, model: Any, attention: bool = False) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        self.width, self.heads, self.attention = model.config.hidden_size, model.config.num_attention_heads, attention
        self.longest = max_positions(model)
        self.segments = "token_type_ids" in inspect.signature(model.forward).parameters
        self.found: dict[str, Tensor] = {}
        if attention:
            self._listen()

    def _listen(self) -> None:
        """Keep what the last query, key and value products give."""
        for kind, names in PARTS.items():
            there = [m for n, m in self.model.named_modules() if n.rpartition(".")[2] in names]
            if not there or getattr(self.model.config, "position_embedding_type", None) not in (None, "absolute"):
                raise AlbertkitError(
                    f"attention of {type(self.model).__name__} cannot be looked into (BERT, RoBERTa, ELECTRA, DistilBERT and ALBERT can); "
                    "learn from hidden instead"
                )
            there[-1].register_forward_hook(lambda _m, _g, out, kind=kind: self.found.__setitem__(kind, out))

    def forward(self, batch: Batch) -> tuple[LayerStates, None]:
        inside = batch.padding.inside  # (texts, longest)
        given = {"input_ids": batch.pad(batch.ids), "attention_mask": inside.long()}
        if self.segments:
            given["token_type_ids"] = batch.pad(batch.segments)
        out = self.model(**given, output_hidden_states=True)
        parts = None
        if self.attention:
            query, key, value = (self.found[k][inside].float().unflatten(-1, (self.heads, -1)) for k in PARTS)
            parts = (query, key, value)
        return LayerStates(tuple(h[inside].float() for h in out.hidden_states), parts), None


def require_same_tokens(mine: Tokenizer, theirs: Tokenizer | Any, texts: Sequence[str], folder: Path | str) -> None:
    """Refuse a teacher that cuts text otherwise than the student; `theirs` is a tokenizer of ours, or of the tokenizers library."""
    if isinstance(theirs, Tokenizer):
        table = theirs.vocabulary.ids
        same = [e.ids for e in theirs.encode_batch(list(texts))] if texts else []
    else:
        table = theirs.get_vocab(with_added_tokens=True)
        same = [e.ids for e in theirs.encode_batch(list(texts))] if texts else []
    ours = [e.ids for e in mine.encode_batch(list(texts))] if texts else []
    if dict(table) != dict(mine.vocabulary.ids) or same != ours:
        why = f"{len(table):,} pieces there, {mine.vocab_size:,} here"
        if len(table) == mine.vocab_size:
            why = "as many pieces, and other ones, or other rules"
        raise AlbertkitError(
            f"hidden states and attention are compared token by token, and {folder} cuts text otherwise than the student ({why}); "
            "take a student with the teacher's vocabulary (--shape takes it by itself), or learn from vectors or logits"
        )


def open_state_teacher(
    folder: Path | str, tokenizer: Tokenizer, texts: Sequence[str], attention: bool = False
) -> AlbertTeacher | TransformersTeacher:
    """A teacher to look into: a model of ours or an ALBERT of any kind, else what transformers opens."""
    from albertkit.interop.convert import open_model
    from albertkit.train.teachers import is_albert, load_transformers_encoder

    sample = list(texts)[:SAMPLE]
    if is_albert(folder):
        artifact = open_model(folder)
        if artifact.config.options.static:
            raise AlbertkitError(
                f"{folder} is a static model, which has no layers to learn from; learn from its vectors"
            )
        if artifact.tokenizer is None:
            raise AlbertkitError(f"{folder} holds no tokenizer; put tokenizer.json beside the weights")
        require_same_tokens(tokenizer, artifact.tokenizer, sample, folder)
        return AlbertTeacher(artifact, attention)
    model, rust = load_transformers_encoder(Path(folder), torch.device("cpu"))
    rust.no_truncation()
    require_same_tokens(tokenizer, rust, sample, folder)
    return TransformersTeacher(model, attention)
