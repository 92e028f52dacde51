"""Inputs of the golden results: texts, a tiny model in the layout of transformers, labelled files, and how commands run.

Nothing here imports the package but the command line: files and flags are what people use.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from click.testing import CliRunner
from matplotlib.figure import Figure

COLOURS = ["red", "green", "blue", "white", "black", "grey", "pink", "brown"]
ANIMALS = ["cat", "dog", "cow", "hen", "pig", "fox", "owl", "bee"]
TREES = ["oak", "elm", "ash", "fir", "yew", "bay", "fig", "palm"]
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [
    *SPECIAL,
    ".",
    "?",
    *NUMBERS,
    *COLOURS,
    *ANIMALS,
    *TREES,
    "##s",
    "##ish",
    "what",
    "which",
    "a",
    "the",
    "is",
]
SHAPE = {
    "model_type": "albert",
    "architectures": ["AlbertForPreTraining"],
    "vocab_size": len(VOCABULARY),
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "classifier_dropout_prob": 0.1,
    "initializer_range": 0.1,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}


# Running ---------------------------------------------------------------------------------------------------------


def albertkit(*arguments: Any) -> str:
    """Run a command in this process, without drawing figures; gives what it wrote to stdout."""
    from albertkit.cli.entry_point import app

    with patch.object(Figure, "savefig", lambda *given, **options: None), patch("os.fsync", lambda number: None):
        done = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert done.exit_code == 0, f"albertkit {' '.join(map(str, arguments))}\n{done.output[-3000:]}"
    return done.stdout


@contextmanager
def losses() -> Iterator[list[float]]:
    """The loss of every training step in this context, as backpropagation gets it."""
    import torch

    inner, seen = torch.Tensor.backward, list[float]()

    def backward(loss: torch.Tensor, *arguments: Any, **options: Any) -> None:
        seen.append(float(loss.detach()))
        inner(loss, *arguments, **options)

    torch.Tensor.backward = backward  # type: ignore[method-assign, assignment]
    try:
        yield seen
    finally:
        torch.Tensor.backward = inner  # type: ignore[method-assign]


@cache
def place() -> Path:
    """A folder for everything that is made, which lasts as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="golden-")
    _open.append(folder)
    return Path(folder.name)


_open: list[Any] = []


# A model ---------------------------------------------------------------------------------------------------------


@cache
def tiny_model(seed: int = 0) -> Path:
    """A pre-trained model of the shape above, as transformers writes one; the numbers are random."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(seed)
    word, hidden, inner = SHAPE["embedding_size"], SHAPE["hidden_size"], SHAPE["intermediate_size"]
    layer = "albert.encoder.albert_layer_groups.0.albert_layers.0"
    tables = {
        "albert.embeddings.word_embeddings": SHAPE["vocab_size"],
        "albert.embeddings.position_embeddings": SHAPE["max_position_embeddings"],
        "albert.embeddings.token_type_embeddings": 2,
    }
    matrices = {
        "albert.encoder.embedding_hidden_mapping_in": (hidden, word),
        **{f"{layer}.attention.{name}": (hidden, hidden) for name in ("query", "key", "value", "dense")},
        f"{layer}.ffn": (inner, hidden),
        f"{layer}.ffn_output": (hidden, inner),
        "albert.pooler": (hidden, hidden),
        "predictions.dense": (word, hidden),
        "sop_classifier.classifier": (2, hidden),
    }
    norms = {
        "albert.embeddings.LayerNorm": word,
        f"{layer}.attention.LayerNorm": hidden,
        f"{layer}.full_layer_layer_norm": hidden,
        "predictions.LayerNorm": word,
    }
    weights = {f"{name}.weight": rng.normal(0, 0.3, (rows, word)) for name, rows in tables.items()}
    for name, shape in matrices.items():
        weights[f"{name}.weight"] = rng.normal(0, 0.2, shape)
        weights[f"{name}.bias"] = rng.normal(0, 0.1, shape[0])
    for name, width in norms.items():
        weights[f"{name}.weight"] = rng.normal(1, 0.1, width)
        weights[f"{name}.bias"] = rng.normal(0, 0.1, width)
    weights["predictions.bias"] = rng.normal(0, 0.1, SHAPE["vocab_size"])
    folder = place() / f"tiny-{seed}"
    folder.mkdir()
    save_file({name: array.astype(np.float32) for name, array in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(SHAPE))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    target = place() / f"model-{seed}"
    albertkit("convert", folder, target)
    return target


# Texts -----------------------------------------------------------------------------------------------------------


def words(rng: np.random.Generator, ring: list[str], count: int) -> str:
    return " ".join(rng.choice(ring, count).tolist())


def sentences(count: int, seed: int = 0) -> list[str]:
    """Sentences of one topic each, of several lengths."""
    rng = np.random.default_rng(seed)
    topics = (COLOURS, ANIMALS, TREES)
    return [
        f"{rng.choice(NUMBERS)} {words(rng, topics[int(rng.integers(3))], int(rng.integers(2, 9)))} ."
        for _ in range(count)
    ]


@cache
def text_file() -> Path:
    """One text per line."""
    return written("texts.txt", "".join(f"{line}\n" for line in sentences(80)))


@cache
def corpus() -> Path:
    """A corpus for pre-training: documents of some sentences."""
    documents = [" ".join(sentences(6, seed)) for seed in range(120)]
    source = written("documents.txt", "\n\n".join(documents) + "\n")
    folder = place() / "corpus"
    albertkit(
        "corpus",
        source,
        "-o",
        folder,
        "--tokenizer",
        tiny_model(),
        "--workers",
        1,
        "--min-tokens",
        2,
        "--held-out",
        0.1,
    )
    return folder


def written(name: str, text: str) -> Path:
    path = place() / name
    path.write_text(text, encoding="utf-8")
    return path


# Labelled files: task → (arguments of the reader, rows) -------------------------------------------------------------


def classes(rng: np.random.Generator) -> dict[str, Any]:
    beasts = int(rng.integers(0, 5))
    text = (
        f"{words(rng, ANIMALS, beasts)} {words(rng, TREES, 4 - beasts)} {words(rng, COLOURS, int(rng.integers(1, 5)))}"
    )
    return {"text": text.strip(), "label": "animal" if beasts > 2 else "tree", "beasts": beasts}


def single(rng: np.random.Generator) -> dict[str, Any]:
    row = classes(rng)
    return {"text": row["text"], "label": row["label"]}


def regression(rng: np.random.Generator) -> dict[str, Any]:
    row = classes(rng)
    return {"text": row["text"], "label": row["beasts"] + 0.5}


def multi(rng: np.random.Generator) -> dict[str, Any]:
    row = classes(rng)
    return {
        "text": row["text"],
        "label": [name for name, there in (("animal", row["beasts"]), ("tree", row["beasts"] < 4)) if there],
    }


def pair(rng: np.random.Generator) -> dict[str, Any]:
    first, second = rng.integers(0, 2, 2)
    topics = (ANIMALS, TREES)
    text_a, text_b = words(rng, topics[first], 4), words(rng, topics[second], 4)
    return {"text_a": text_a, "text_b": text_b, "label": "same" if first == second else "other"}


def match(rng: np.random.Generator) -> dict[str, Any]:
    row = pair(rng)
    return {**row, "label": str(int(row["label"] == "same"))}


def tagged(rng: np.random.Generator) -> dict[str, Any]:
    before, after = rng.choice(COLOURS, 3).tolist(), rng.choice(COLOURS, 2).tolist()
    tokens = [*before, str(rng.choice(ANIMALS)), *after, str(rng.choice(TREES))]
    labels = ["O", "O", "O", "B-animal", "O", "O", "B-tree"]
    return {"tokens": tokens, "labels": labels, "intent": "buy" if "red" in tokens else "look"}


def question(rng: np.random.Generator) -> dict[str, Any]:
    before, beast = words(rng, COLOURS, int(rng.integers(2, 5))), str(rng.choice(ANIMALS))
    answers = {"text": [beast], "answer_start": [len(before) + 1]}
    return {
        "id": str(rng.integers(10**9)),
        "question": "which animal ?",
        "context": f"{before} {beast} {words(rng, TREES, 3)}",
        "answers": answers,
    }


def choice(rng: np.random.Generator) -> dict[str, Any]:
    right = int(rng.integers(0, 3))
    choices = [str(rng.choice(ANIMALS if number == right else TREES)) for number in range(3)]
    return {"context": words(rng, COLOURS, 4), "question": "which animal ?", "choices": choices, "right": right}


def rewrite(rng: np.random.Generator) -> dict[str, Any]:
    beasts = rng.choice(ANIMALS, 2).tolist()
    return {"source": f"{words(rng, COLOURS, 2)} {' '.join(beasts)}", "target": " ".join(beasts)}


def dialogue(rng: np.random.Generator) -> dict[str, Any]:
    colour, animal = (str(rng.choice(ring[:3])) for ring in (COLOURS, ANIMALS))
    acts = [{"act": "inform", "slots": [[slot, value]]} for slot, value in (("colour", colour), ("animal", animal))]
    turns = [
        {
            "turn_idx": 0,
            "system_transcript": "",
            "transcript": f"a {colour} one .",
            "turn_label": [["colour", colour]],
            "belief_state": acts[:1],
        },
        {
            "turn_idx": 1,
            "system_transcript": "which animal ?",
            "transcript": f"the {animal} .",
            "turn_label": [["animal", animal]],
            "belief_state": acts,
        },
    ]
    return {"dialogue_idx": int(rng.integers(10**6)), "dialogue": turns}


ROWS: dict[str, tuple[str, Callable[[np.random.Generator], dict[str, Any]]]] = {
    "single": ("classify", single),
    "pair": ("classify", pair),
    "multi": ("classify", multi),
    "regression": ("classify", regression),
    "tag": ("tag", tagged),
    "intent": ("intent", tagged),
    "answer": ("answer", question),
    "choose": ("choose", choice),
    "match": ("match", match),
    "dialogue": ("dialogue", dialogue),
    "generate": ("generate", rewrite),
}


@cache
def labelled(kind: str, count: int = 80, seed: int = 0) -> Path:
    """A file of examples for one of `ROWS`."""
    rng = np.random.default_rng(seed)
    if kind == "dialogue":  # of two turns each
        rows = [dialogue(rng) for _ in range(count // 2)]
        return written(f"{kind}-{seed}.json", json.dumps(rows))
    rows = [ROWS[kind][1](rng) for _ in range(count)]
    return written(f"{kind}-{seed}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


TRAINING = (
    "--epochs",
    2,
    "--batch-size",
    8,
    "--learning-rate",
    2e-3,
    "--max-length",
    40,
    "--device",
    "cpu",
    "--seed",
    1,
)


@cache
def finetuned(kind: str) -> tuple[Path, tuple[float, ...]]:
    """A model that was fine-tuned for 20 steps, and its losses."""
    out = place() / f"finetuned-{kind}"
    task = ROWS[kind][0]
    more = ("--kind", kind) if kind in ("multi", "regression") else ("--target-length", 8) if kind == "generate" else ()
    with losses() as seen:
        albertkit(
            "finetune", task, labelled(kind), "--dev", labelled(kind, 16, 9), "-o", out, "--model", tiny_model(),
            "--restarts", 0, "--optimizer", "adamw", *TRAINING, *more,
        )  # fmt: skip
    return out / "model", tuple(seen)
