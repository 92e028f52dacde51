"""An explanation as one HTML page.

In: an `Explanation`. Out: HTML. The page inlines `page.css` and `page.js`. Texts are escaped, and a content security
policy forbids every request. Attention is rounded to 1/255. If the attention of all heads is too large, the page shows
the mean of the heads, and if necessary only some layers.
"""

from __future__ import annotations

import base64
import json
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from albertkit.explain.activations import AttentionMap
    from albertkit.explain.attribution import Attribution
    from albertkit.explain.explain_input import ExplainedWord
    from albertkit.explain.explainer import Explanation

MAX_NUMBERS = 1_000_000  # of attention in a page, one byte each before base64
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
MAX_OPACITY = 0.6  # keeps colored words readable
DESCRIPTIONS = {
    "occlusion": "The decrease of the value if the word is hidden.",
    "gradients": "Integrated gradients, with a text of hidden words as the baseline.",
}


def render_page(explanation: Explanation) -> str:
    folder = files("albertkit.explain")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    maps = [pack_map(attention_map, MAX_NUMBERS // len(explanation.maps)) for attention_map in explanation.maps]
    title = escape(f"{explanation.kind}: {explanation.target}")
    body = [
        f"<h1>{title}</h1>",
        f'<p>{escape(value_text(explanation))}</p><p class="soft">model {escape(explanation.model)}</p>',
        "<h2>Words</h2>",
        '<p>Colors: words that <span class="word" style="--share:.4">support</span> and '
        '<span class="word against" style="--share:.4">oppose</span> the target; stronger for larger values.</p>',
        *(part for attribution in explanation.attributions for part in words_section(explanation, attribution)),
        values_table(explanation),
        "<h2>Layer by layer</h2>",
        layers_section(explanation),
        "<h2>Attention</h2>",
        '<p class="soft">Rows attend to columns. Attention shows where information can flow; only the values above '
        "show what the prediction depends on.</p>",
        *(attention_section(explanation, place, attention_map) for place, attention_map in enumerate(explanation.maps)),
        *(f'<p class="soft">{escape(note)}</p>' for _, note in maps if note),
    ]
    data = json.dumps([data for data, _ in maps]).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{style}</style></head>\n"
        f'<body><main>{"".join(body)}</main><script type="application/json" id="data">{data}</script>'
        f"<script>{script}</script></body></html>\n"
    )


def value_text(explanation: Explanation) -> str:
    if explanation.unit != "log-odds":
        return f"{explanation.unit} {explanation.value:.4f}"
    return f"probability {explanation.probability:.1%}, log-odds {explanation.value:+.2f}"


def words_section(explanation: Explanation, attribution: Attribution) -> list[str]:
    """The texts, each word colored by its value."""
    values = attribution.values
    largest = max(float(np.abs(values).max()), 1e-12)
    sums = (
        f" Whole text {attribution.full:+.3f}; all words hidden {attribution.empty:+.3f}; "
        f"sum of the words {values.sum():+.3f}."
    )
    texts = []
    for part, text in explanation.parts.items():
        spans, position = [], 0
        for word, value in zip(explanation.words, values.tolist(), strict=True):
            if word.part == part:
                spans += [escape(text[position : word.start]), colored_word(word, value, largest)]
                position = word.end
        name = f"<b>{escape(part)}</b>" if len(explanation.parts) > 1 else ""
        texts.append(f'<div class="text">{name}{"".join(spans)}{escape(text[position:])}</div>')
    method = attribution.method
    return [f"<h3>{method}</h3>", f'<p class="soft">{DESCRIPTIONS[method]}{sums}</p>', *texts]


def colored_word(word: ExplainedWord, value: float, largest: float) -> str:
    """One word, with its value as the title."""
    side = " against" if value < 0 else ""
    share = MAX_OPACITY * abs(value) / largest
    return f'<span class="word{side}" style="--share:{share:.3f}" title="{value:+.4f}">{escape(word.text)}</span>'


def values_table(explanation: Explanation) -> str:
    heads = "".join(f'<th scope="col" class="number">{a.method}</th>' for a in explanation.attributions)
    rows = []
    for place, word in enumerate(explanation.words):
        cells = "".join(f'<td class="number">{a.values[place]:+.4f}</td>' for a in explanation.attributions)
        position = f"{escape(word.part)} {word.start}–{word.end}"
        rows.append(f'<tr><th scope="row">{escape(word.text)}</th><td>{position}</td>{cells}</tr>')
    return (
        f"<details><summary>All values as numbers ({escape(explanation.unit)})</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Values of words">'
        f'<table><thead><tr><th scope="col">word</th><th scope="col">characters</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def layers_section(explanation: Explanation) -> str:
    """The prediction after each layer."""
    uncertainty, exits = explanation.uncertainty, explanation.early_exit
    column = ""
    if exits is not None and uncertainty:
        column = f'<th scope="col" class="number">uncertainty ({escape(exits.kind)})</th>'
    rows = []
    for layer in explanation.layers:
        number = f"{uncertainty[layer.depth]:.3f}" if layer.depth in uncertainty else "–"
        cell = f'<td class="number">{number}</td>' if column else ""
        summary = ", ".join(name if p is None else f"{name} {p:.1%}" for name, p in layer.summary)
        probability = f"{layer.probability:.1%}" if explanation.unit == "log-odds" else f"{layer.probability:.4f}"
        rows.append(
            f'<tr class="{"same" if layer.matches_full_depth else "other"}"><th scope="row">{layer.depth}</th>'
            f'<td>{escape(summary)}</td><td class="number">{probability}</td><td class="number">{layer.value:+.3f}</td>'
            f"{cell}</tr>"
        )
    notes = []
    if explanation.stable_depth is not None:
        notes.append(f"The prediction stays the same from layer {explanation.stable_depth} on.")
    if exits is not None and exits.exit_depth_99 is not None:
        notes.append(f"early_exit='99%' exits after layer {exits.exit_depth_99}.")
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Layer by layer"><table><thead><tr>'
        '<th scope="col">layer</th><th scope="col">prediction</th>'
        f'<th scope="col" class="number">{escape(explanation.target)}</th>'
        f'<th scope="col" class="number">{escape(explanation.unit)}</th>{column}</tr></thead>'
        f'<tbody>{"".join(rows)}</tbody></table></div><p class="soft">{escape(" ".join(notes))}</p>'
    )


def attention_section(explanation: Explanation, place: int, attention_map: AttentionMap) -> str:
    """The frame of one map; `page.js` fills it."""
    name = f"<h3>{escape(list(explanation.parts)[attention_map.row])}</h3>" if len(explanation.maps) > 1 else ""
    selects = "".join(f"<label>{label}<select></select></label>" for label in ("layer", "head", "token"))
    return (
        f'<section id="map-{place}">{name}'
        '<canvas class="all" role="img" aria-label="All maps: one row per layer, one column per head"></canvas>'
        f'<div class="choose">{selects}</div>'
        '<canvas role="img" aria-label="One row per token that attends, one column per token attended to"></canvas>'
        '<p role="status"></p><ul class="pieces"></ul></section>'
    )


def pack_map(attention_map: AttentionMap, max_numbers: int) -> tuple[dict[str, Any], str]:
    """A map as JSON with attention as bytes, and a note about heads and layers that were too many."""
    attention, note = attention_map.attention, ""
    layers, heads, tokens, _ = attention.shape
    layer_numbers, names = list(range(layers)), [str(h + 1) for h in range(heads)]
    max_numbers -= tokens**2  # the rollout
    if attention.size > max_numbers:
        attention, names = attention.mean(axis=1, keepdims=True), ["mean of all"]
        note = f"The text has {tokens} tokens, so heads are shown as their mean"
        max_layers = max(1, max_numbers // tokens**2)
        if layers > max_layers:
            layer_numbers = sorted({round(x) for x in np.linspace(0, layers - 1, max_layers).tolist()})
            note += f", and {len(layer_numbers)} of {layers} layers"
        note += "."
    data = {
        "tokens": list(attention_map.tokens),
        "layers": [str(layer + 1) for layer in layer_numbers],
        "heads": names,
        "data": encode_bytes(attention[layer_numbers]),
        "rollout": encode_bytes(attention_map.rollout),
        "from": attention_map.reader,
    }
    return data, note


def encode_bytes(shares: np.ndarray) -> str:
    return base64.b64encode(np.rint(np.clip(shares, 0, 1) * 255).astype(np.uint8).tobytes()).decode("ascii")
