"""The model in torch: `AlbertModel` (encoder plus heads), `Batch` (packed texts), the heads and their outputs."""

from albertkit.model.albert_model import AlbertModel, ModelOutput
from albertkit.model.encoder import Encoder, EncoderOutput
from albertkit.model.heads import (
    POOLINGS,
    AnswerHead,
    ChooseHead,
    ClassifyHead,
    ClassLogits,
    Head,
    MlmHead,
    MlmLogits,
    SentenceOrderHead,
    SpanLogits,
    TagHead,
    pool,
)
from albertkit.model.packed_batch import Batch

__all__ = [
    "POOLINGS",
    "AlbertModel",
    "AnswerHead",
    "Batch",
    "ChooseHead",
    "ClassLogits",
    "ClassifyHead",
    "Encoder",
    "EncoderOutput",
    "Head",
    "MlmHead",
    "MlmLogits",
    "ModelOutput",
    "SentenceOrderHead",
    "SpanLogits",
    "TagHead",
    "pool",
]
