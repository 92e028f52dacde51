"""A program that uses every exported function and method with their types; `mypy --strict` checks it (never run)."""

from pathlib import Path

import numpy as np

from albertkit import (
    Albert,
    AlbertConfig,
    AnswerResult,
    Artifact,
    ChoiceResult,
    Classification,
    Clusters,
    DialogueState,
    EmbedOptions,
    EvaluationResult,
    ExitCalibration,
    Explanation,
    ExportResult,
    ExportSettings,
    FinetuneResult,
    GeneratedText,
    Index,
    IntentResult,
    MaskPrediction,
    PlanRequest,
    PlanResult,
    PruneResult,
    PruneSettings,
    QuantizeResult,
    Record,
    SearchHit,
    ServeSettings,
    StaticModelResult,
    TagResult,
    TextExample,
    TokenVectors,
    calibrate,
    cluster,
    convert,
    evaluate,
    export,
    finetune,
    make_static_model,
    open_model,
    plan,
    preset,
    prune,
    quantize,
    read_artifact,
    serve,
    write_artifact,
)


def vectors(albert: Albert) -> np.ndarray:
    options: EmbedOptions = albert.embed_options(pooling="mean", dim=128)
    early = albert.embed_early_exit(["a cat"], "cosine:0.9", dim=options.dim)
    one: TokenVectors = albert.token_vectors("a cat")
    many: list[TokenVectors] = albert.token_vectors(["a cat"], layer=-1)
    number: float = albert.similarity("a cat", "a dog")
    table: np.ndarray = albert.similarity(["a cat", "a dog"])
    for vector in albert.embed_iter(["a cat"], early_exit="99%", on_exit=print):
        table = np.stack([*table, vector, early.vectors[0], one.vectors[0], many[0].vectors[0] * number])
    return np.stack([table, albert.embed(["a cat", "a dog"], depth=6, prompt="query", normalize=False)])


def words(albert: Albert) -> list[str]:
    masks: list[list[MaskPrediction]] = albert.fill_mask("a [MASK]", k=3)
    written: GeneratedText = albert.generate("a long text", beams=2)
    several: list[GeneratedText] = albert.generate(["a long text"], beams=2, max_tokens=9)
    return [masks[0][0].word, written.text, *(text.text for text in several)]


def tasks(albert: Albert) -> list[object]:
    label: Classification = albert.classify("a text", early_exit="99%")
    labels: list[Classification] = albert.classify(["a text"], ["another"], depth=3)
    tags: TagResult = albert.tag("Ann lives in Rome")
    intent: IntentResult = albert.understand("wake me at seven")
    states: list[DialogueState] = albert.track(["a cheap hotel", ("where?", "in the north")])
    answer: AnswerResult = albert.answer("who?", "Ann")
    choice: ChoiceResult = albert.choose("who left?", "Tom left.", ["Tom", "Ann"])
    explanation: Explanation = albert.explain("a text", methods=("occlusion",))
    return [label, *labels, tags, intent, *states, answer, choice, explanation]


def search(albert: Albert, path: Path) -> Clusters:
    with Index.create(path, albert) as index:
        index.add([Record("1", "a cat")])
        hits: list[SearchHit] = index.search("cat", k=3)
    return cluster(albert.embed([hit.text for hit in hits]))


def train(folder: Path) -> EvaluationResult:
    result: FinetuneResult = finetune("classify", [TextExample("a", label="b")], output=folder / "model")
    return evaluate(result.model, folder / "test.tsv")


def compress(folder: Path) -> tuple[QuantizeResult, PruneResult, StaticModelResult, ExportResult]:
    return (
        quantize(folder, folder / "int8"),
        prune(folder, folder / "small", PruneSettings()),
        make_static_model(folder, folder / "static"),
        export(folder, folder / "model.onnx", ExportSettings()),
    )


def deploy(folder: Path) -> PlanResult:
    artifact: Artifact = convert(folder, folder / "copy")
    config: AlbertConfig = preset("base")
    write_artifact(read_artifact(folder), folder / "again")
    limits: ExitCalibration = calibrate(folder, ["a text"])
    print(artifact.config == config, open_model(folder).config, limits.texts)
    serve([str(folder)], ServeSettings())
    return plan("base", PlanRequest(latency=0.02))
