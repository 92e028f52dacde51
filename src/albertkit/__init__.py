"""albertkit: the ALBERT toolkit. These names are the public API; each is imported when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from albertkit.albert import Albert, EarlyExitVectors
    from albertkit.artifact import Artifact, read_artifact, write_artifact
    from albertkit.compress.cost import shape_cost
    from albertkit.compress.planner import PlanRequest, PlanResult, plan
    from albertkit.compress.prune import PruneResult, PruneSettings, prune
    from albertkit.compress.quantize import QuantizeResult, quantize
    from albertkit.compress.static_model import StaticModelResult, make_static_model
    from albertkit.config import AlbertConfig, preset
    from albertkit.errors import AlbertkitError
    from albertkit.explain import Explainer, Explanation
    from albertkit.interop.convert import convert, open_model
    from albertkit.interop.onnx_export import ExportResult, ExportSettings, export
    from albertkit.runtime.calibration import calibrate
    from albertkit.runtime.early_exit import ExitCalibration
    from albertkit.runtime.embed import EmbedOptions, TokenVectors
    from albertkit.runtime.generate import GenerateSettings
    from albertkit.runtime.predict import MaskPrediction
    from albertkit.search.cluster import Clusters, cluster
    from albertkit.search.index import Index, SearchHit
    from albertkit.serve.serve_settings import ServeSettings
    from albertkit.serve.server import serve
    from albertkit.tasks.answer import AnswerResult
    from albertkit.tasks.choose import ChoiceResult
    from albertkit.tasks.classify import Classification
    from albertkit.tasks.dialogue import DialogueState
    from albertkit.tasks.examples import (
        ChoiceExample,
        DialogueTurn,
        QuestionExample,
        RewriteExample,
        TaggedExample,
        TextExample,
    )
    from albertkit.tasks.generation import GeneratedText
    from albertkit.tasks.match import MatchResult
    from albertkit.tasks.tag import IntentResult, TagResult
    from albertkit.text_reader import Record
    from albertkit.tokenizer import Tokenizer
    from albertkit.train.evaluation import EvaluationResult, evaluate
    from albertkit.train.finetune import finetune
    from albertkit.train.frozen_head import FinetuneResult

# fmt: off
__all__ = [
    "Albert", "AlbertConfig", "AlbertkitError", "AnswerResult", "Artifact", "ChoiceExample", "ChoiceResult",
    "Classification", "Clusters", "DialogueState", "DialogueTurn", "EarlyExitVectors", "EmbedOptions",
    "EvaluationResult", "ExitCalibration", "Explainer", "Explanation", "ExportResult", "ExportSettings",
    "FinetuneResult", "GenerateSettings", "GeneratedText", "Index", "IntentResult", "MaskPrediction",
    "MatchResult", "PlanRequest", "PlanResult", "PruneResult", "PruneSettings", "QuantizeResult", "QuestionExample",
    "Record", "RewriteExample", "SearchHit", "ServeSettings", "StaticModelResult", "TagResult", "TaggedExample",
    "TextExample", "TokenVectors", "Tokenizer", "calibrate", "cluster", "convert", "evaluate", "export", "finetune",
    "make_static_model", "open_model", "plan", "preset", "prune", "quantize", "read_artifact", "serve", "shape_cost",
    "write_artifact",
]
# fmt: on

_NAMES = {  # the public names of each module
    "albert": ("Albert", "EarlyExitVectors"),
    "artifact": ("Artifact", "read_artifact", "write_artifact"),
    "compress.cost": ("shape_cost",),
    "compress.planner": ("PlanRequest", "PlanResult", "plan"),
    "compress.prune": ("PruneResult", "PruneSettings", "prune"),
    "compress.quantize": ("QuantizeResult", "quantize"),
    "compress.static_model": ("StaticModelResult", "make_static_model"),
    "config": ("AlbertConfig", "preset"),
    "errors": ("AlbertkitError",),
    "explain": ("Explainer", "Explanation"),
    "interop.convert": ("convert", "open_model"),
    "interop.onnx_export": ("ExportResult", "ExportSettings", "export"),
    "runtime.calibration": ("calibrate",),
    "runtime.early_exit": ("ExitCalibration",),
    "runtime.embed": ("EmbedOptions", "TokenVectors"),
    "runtime.generate": ("GenerateSettings",),
    "runtime.predict": ("MaskPrediction",),
    "search.cluster": ("Clusters", "cluster"),
    "search.index": ("Index", "SearchHit"),
    "serve": ("serve",),
    "serve.serve_settings": ("ServeSettings",),
    "tasks.answer": ("AnswerResult",),
    "tasks.choose": ("ChoiceResult",),
    "tasks.classify": ("Classification",),
    "tasks.dialogue": ("DialogueState",),
    "tasks.examples": (
        "ChoiceExample",
        "DialogueTurn",
        "QuestionExample",
        "RewriteExample",
        "TaggedExample",
        "TextExample",
    ),
    "tasks.generation": ("GeneratedText",),
    "tasks.match": ("MatchResult",),
    "tasks.tag": ("IntentResult", "TagResult"),
    "text_reader": ("Record",),
    "tokenizer": ("Tokenizer",),
    "train.evaluation": ("EvaluationResult", "evaluate"),
    "train.finetune": ("finetune",),
    "train.frozen_head": ("FinetuneResult",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'albertkit' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = importlib.import_module(f"albertkit.{_MODULES[name]}")
    return module if name == "serve" else getattr(module, name)  # the package `serve` can be called


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
