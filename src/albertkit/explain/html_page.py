"""An explanation as one page that needs nothing else: no script, style, font or request from elsewhere.

In: an `Explanation`. Out: HTML. Before this file: `explanation.py`; beside it: `page.css` and `page.js`, which are put into the page. What texts
hold is escaped, and a policy in the page forbids every request. Attention is rounded to 1/255; where all heads of all layers
would be too much, the page shows the mean of the heads, and then only some layers.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.explain.attention_maps import AttentionMap
from albertkit.explain.attribution import Attribution
from albertkit.explain.explained_input import ExplainedWord
from albertkit.explain.explanation import Explanation

ROOM = 1_000_000  # numbers of attention in a page, a byte each before base64
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
STRONGEST = 0.6  # of a colour, so that the words stay readable
MEANING = {
    "occlusion": "What is lost when the word is hidden.",
    "shapley": "What the word adds on average, when words come in random orders.",
    "gradients": "Integrated gradients: what the word adds on the straight way from a text of hidden words.",
    "rollout": "How much of the word could have reached what is read, by attention alone. It knows no against.",
    "attention": "What the last layer looks at, on average over heads. It knows no against, and is no explanation by itself.",
}


def page(found: Explanation) -> str:
    """The whole page."""
    here = files("albertkit.explain")
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    data = [packed(one, ROOM // len(found.maps)) for one in found.maps]
    title = escape(f"{found.kind}: {found.target}")
    body = [
        f"<h1>{title}</h1>",
        f'<p>{escape(number(found))}</p><p class="soft">model {escape(found.model)}</p>',
        "<h2>Words</h2>",
        '<p>Colours: <span class="word" style="--share:.4">for</span> and <span class="word against" style="--share:.4">against</span> '
        "what is explained, stronger where the value is larger.</p>",
        *(section for one in found.attributions for section in words(found, one)),
        table(found),
        "<h2>Layer by layer</h2>",
        layers(found),
        "<h2>Attention</h2>",
        '<p class="soft">Where heads look. Rows look at columns. Looking is not using: only the values above say what the prediction depends on.</p>',
        *(attention(found, place, one) for place, one in enumerate(found.maps)),
    ]
    safe = json.dumps([one.data for one in data]).replace("<", "\\u003c")
    notes = "".join(f'<p class="soft">{escape(one.note)}</p>' for one in data if one.note)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title><style>{style}</style></head>\n'
        f'<body><main>{"".join(body)}{notes}</main><script type="application/json" id="data">{safe}</script><script>{script}</script></body></html>\n'
    )


def number(found: Explanation) -> str:
    """The value that is explained."""
    if found.unit != "log-odds":
        return f"{found.unit} {found.value:.4f}"
    return f"probability {found.chance:.1%}, log-odds {found.value:+.2f}"


def words(found: Explanation, one: Attribution) -> list[str]:
    """The texts, each word coloured by its value."""
    top = max(float(np.abs(one.values).max()), 1e-12)
    told = ""
    if one.full is not None and one.empty is not None:
        told = (
            f" Whole text {one.full:+.3f}; all words hidden {one.empty:+.3f}; sum of the words {one.values.sum():+.3f}."
        )
    texts = []
    for part, text in found.parts.items():
        pieces, at = [], 0
        for word, value in zip(found.words, one.values.tolist(), strict=True):
            if word.part == part:
                pieces += [escape(text[at : word.start]), colored_word(word, value, top)]
                at = word.end
        name = f"<b>{escape(part)}</b>" if len(found.parts) > 1 else ""
        texts.append(f'<div class="text">{name}{"".join(pieces)}{escape(text[at:])}</div>')
    return [f"<h3>{one.method}</h3>", f'<p class="soft">{MEANING[one.method]}{told}</p>', *texts]


def colored_word(word: ExplainedWord, value: float, top: float) -> str:
    """One word; its value is in its title and in the table of numbers."""
    side = " against" if value < 0 else ""
    share = STRONGEST * abs(value) / top
    return f'<span class="word{side}" style="--share:{share:.3f}" title="{value:+.4f}">{escape(word.text)}</span>'


def table(found: Explanation) -> str:
    """All values as numbers."""
    heads = "".join(f'<th scope="col" class="number">{one.method}</th>' for one in found.attributions)
    lines = []
    for place, word in enumerate(found.words):
        cells = "".join(f'<td class="number">{one.values[place]:+.4f}</td>' for one in found.attributions)
        lines.append(
            f'<tr><th scope="row">{escape(word.text)}</th><td>{escape(word.part)} {word.start}–{word.end}</td>{cells}</tr>'
        )
    return (
        f'<details><summary>All values as numbers ({escape(found.unit)})</summary><div class="scroll" tabindex="0" role="region" aria-label="Values of words">'
        f'<table><thead><tr><th scope="col">word</th><th scope="col">characters</th>{heads}</tr></thead><tbody>{"".join(lines)}</tbody></table></div></details>'
    )


def layers(found: Explanation) -> str:
    """What the model says after each layer."""
    lines, uncertainty = [], found.uncertainty
    for layer in found.layers:
        doubt = (
            f'<td class="number">{uncertainty[layer.depth]:.3f}</td>' if layer.depth in uncertainty else "<td>–</td>"
        )
        said = ", ".join(name if chance is None else f"{name} {chance:.1%}" for name, chance in layer.said)
        chance = f"{layer.chance:.1%}" if found.unit == "log-odds" else f"{layer.chance:.4f}"
        lines.append(
            f'<tr class="{"same" if layer.same else "other"}"><th scope="row">{layer.depth}</th><td>{escape(said)}</td>'
            f'<td class="number">{chance}</td><td class="number">{layer.value:+.3f}</td>{doubt if uncertainty else ""}</tr>'
        )
    told = []
    column = (
        f'<th scope="col" class="number">doubt ({escape(found.early_exit["kind"])})</th>'
        if found.early_exit and uncertainty
        else ""
    )
    if found.stable_depth is not None:
        told.append(f"It stays what it is from layer {found.stable_depth} on.")
    if found.early_exit is not None and found.early_exit["promised"] is not None:
        told.append(f"early_exit='99%' leaves after layer {found.early_exit['promised']}.")
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Layer by layer"><table><thead><tr><th scope="col">layer</th><th scope="col">says</th>'
        f'<th scope="col" class="number">{escape(found.target)}</th><th scope="col" class="number">{escape(found.unit)}</th>{column}</tr></thead>'
        f'<tbody>{"".join(lines)}</tbody></table></div><p class="soft">{escape(" ".join(told))}</p>'
    )


def attention(found: Explanation, place: int, one: AttentionMap) -> str:
    """The frame of one map; `page.js` fills it."""
    name = f"<h3>{escape(list(found.parts)[one.row])}</h3>" if len(found.maps) > 1 else ""
    chosen = "".join(f"<label>{label}<select></select></label>" for label in ("layer", "head", "token"))
    return (
        f'<section id="map-{place}">{name}<canvas class="all" role="img" aria-label="All maps: a row for each layer, a column for each head"></canvas>'
        f'<div class="choose">{chosen}</div>'
        '<canvas role="img" aria-label="A row for each token that looks, a column for each that is looked at"></canvas>'
        '<p role="status"></p><ul class="pieces"></ul></section>'
    )


class PackedMap:
    """A map as the page holds it."""

    def __init__(self, data: dict[str, Any], note: str) -> None:
        self.data, self.note = data, note


def packed(one: AttentionMap, room: int) -> PackedMap:
    """Attention in bytes, with what does not fit left out and said so."""
    layers, heads, tokens, _ = one.attention.shape
    shown, kept, names, note = one.attention, list(range(layers)), [str(h + 1) for h in range(heads)], ""
    room -= tokens**2  # the rollout
    if one.attention.size > room:
        shown, names = one.attention.mean(axis=1, keepdims=True), ["mean of all"]
        note = f"The text has {tokens} tokens, so that heads are shown as their mean"
        most = max(1, room // tokens**2)
        if layers > most:
            kept = sorted({round(x) for x in np.linspace(0, layers - 1, most).tolist()})
            note += f", and {len(kept)} of {layers} layers"
        note += "."
    data = {
        "tokens": list(one.tokens),
        "layers": [str(layer + 1) for layer in kept],
        "heads": names,
        "data": bytes_of(shown[kept]),
        "rollout": bytes_of(one.rollout),
        "from": one.reader,
    }
    return PackedMap(data, note)


def bytes_of(shares: np.ndarray) -> str:
    """Numbers from 0 to 1 as base64 of bytes."""
    return base64.b64encode(np.rint(np.clip(shares, 0, 1) * 255).astype(np.uint8).tobytes()).decode("ascii")


def check_free(path: Path, overwrite: bool) -> None:
    """Say early that a file cannot be written."""
    if path.exists() and not overwrite:
        raise AlbertkitError(f"{path} exists; move it away, choose another name or allow overwriting (--force)")
    if not path.parent.is_dir():
        raise AlbertkitError(f"{path} cannot be written: {path.parent} is no folder; choose a folder that exists")


def write(path: Path, data: bytes, overwrite: bool) -> Path:
    """A whole file or none."""
    check_free(path, overwrite)
    try:
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(part).chmod(0o644)
            Path(part).replace(path)
        finally:
            Path(part).unlink(missing_ok=True)
    except OSError as error:
        raise AlbertkitError(f"{path} cannot be written: {error.strerror}; choose a folder that exists") from None
    return path
