"""The model in torch: `AlbertModel` (encoder plus heads), `Batch` (packed texts), the heads and their named results."""

from albertkit.model.albert_model import AlbertModel, ModelOutput
from albertkit.model.encoder import Encoded, Encoder
from albertkit.model.heads import (
    POOLINGS,
    AnswerHead,
    Answers,
    ChooseHead,
    ClassifyHead,
    Head,
    MaskedWordHead,
    Scores,
    SentenceOrderHead,
    TagHead,
    WordScores,
    pool,
)
from albertkit.model.packed_batch import Batch

__all__ = [
    "POOLINGS",
    "AlbertModel",
    "AnswerHead",
    "Answers",
    "Batch",
    "ChooseHead",
    "ClassifyHead",
    "Encoded",
    "Encoder",
    "Head",
    "MaskedWordHead",
    "ModelOutput",
    "Scores",
    "SentenceOrderHead",
    "TagHead",
    "WordScores",
    "pool",
]
