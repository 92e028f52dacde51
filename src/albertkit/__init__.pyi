"""The public API, for type checkers, editors and `__init__.py`, which imports a name when it is first used."""

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
from albertkit.input_warnings import (
    BlankTextWarning,
    TruncatedTextWarning,
    UnreadableTextError,
    UnreadableTextWarning,
    UntrainedDepthWarning,
    UntrainedVectorsWarning,
)
from albertkit.interop.convert import convert, open_model
from albertkit.interop.onnx_export import ExportResult, ExportSettings, export
from albertkit.interop.web_export import WebExportResult, export_web
from albertkit.runtime.calibration import calibrate
from albertkit.runtime.early_exit import ExitCalibration
from albertkit.runtime.embed import EmbedOptions, TokenVectors
from albertkit.runtime.generate import GenerateSettings
from albertkit.runtime.mask_filling import MaskPrediction
from albertkit.search.cluster import Clusters, cluster
from albertkit.search.index import Index
from albertkit.search.index_records import SearchHit, SearchResult
from albertkit.search.shared_space import SharedSpace
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
from albertkit.train.finetune import EvaluationResult, evaluate, finetune
from albertkit.train.finetune_report import FinetuneResult, SmallDevSetWarning

__version__: str

# fmt: off
__all__ = [
    "Albert", "AlbertConfig", "AlbertkitError", "AnswerResult", "Artifact", "BlankTextWarning", "ChoiceExample",
    "ChoiceResult", "Classification", "Clusters", "DialogueState", "DialogueTurn", "EarlyExitVectors",
    "EmbedOptions", "EvaluationResult", "ExitCalibration", "Explainer", "Explanation", "ExportResult",
    "ExportSettings", "FinetuneResult", "GenerateSettings", "GeneratedText", "Index", "IntentResult",
    "MaskPrediction", "MatchResult", "PlanRequest", "PlanResult", "PruneResult", "PruneSettings", "QuantizeResult",
    "QuestionExample", "Record", "RewriteExample", "SearchHit", "SearchResult", "ServeSettings", "SharedSpace",
    "SmallDevSetWarning", "StaticModelResult", "TagResult", "TaggedExample", "TextExample", "TokenVectors",
    "Tokenizer", "TruncatedTextWarning", "UnreadableTextError", "UnreadableTextWarning", "UntrainedDepthWarning",
    "UntrainedVectorsWarning", "WebExportResult", "calibrate", "cluster", "convert", "evaluate", "export",
    "export_web", "finetune", "make_static_model", "open_model", "plan", "preset", "prune", "quantize",
    "read_artifact", "serve", "shape_cost", "write_artifact",
]
# fmt: on
