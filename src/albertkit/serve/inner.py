"""Attention for /explain: the served model's weights as floats, opened when somebody looks, and what its heads attend to.

In: a served model and a text that is ready to be computed. Out: attention as numbers, or packed for the page. Before this file:
`explain/activations.py` computes it; after it: `look.py`. The engine holds its weights where numpy cannot read them, so that they are read
from the model's folder again; two models at most stay open, since few people look and floats are large.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections import OrderedDict
from functools import partial
from typing import Any, Literal

import numpy as np

from albertkit.artifact import read_stored
from albertkit.errors import AlbertkitError
from albertkit.explain.activations import LayerActivations, NumpyEncoder
from albertkit.serve.explain_api import Looking
from albertkit.serve.http_error import HttpError
from albertkit.serve.inference import RequestContext, Service
from albertkit.serve.served_models import ServedModel

KEPT = 2
SLOWER = 4  # times the engine, about; so that the batcher knows how long it takes
MOST = {"float": 1_000_000, "base64": 5_000_000}  # numbers in one answer
TOP = 65535
Form = Literal["float", "base64"]
_opened: OrderedDict[int, NumpyEncoder] = OrderedDict()
_opening = threading.Lock()


def inside_of(service: Service, model: ServedModel) -> NumpyEncoder:
    """A served model's weights as floats."""
    with _opening:
        if model.number not in _opened:
            folder = next(source.folder for source in service.models.sources if source.name == model.name)
            stored = read_stored(folder)
            if not model.albert.name.startswith(stored.identity[:16]):
                raise AlbertkitError(f"the files of {model.name!r} have changed since it was opened; reload it first")
            _opened[model.number] = NumpyEncoder.of(stored)
            while len(_opened) > KEPT:
                _opened.popitem(last=False)
        _opened.move_to_end(model.number)
        return _opened[model.number]


async def attention_of(
    service: Service, context: RequestContext, model: ServedModel, look: Looking, depth: int, form: Form
) -> Any:
    """What each head attends to: layers × heads × from token × to token."""
    heads, tokens = model.albert.config.num_attention_heads, look.tokens
    if depth * heads * tokens**2 > MOST[form]:
        room = int((MOST[form] / (depth * heads)) ** 0.5)
        raise HttpError(
            413, f"the text has {tokens} tokens; with attention in {form!r} it may have {room}", name="text"
        )
    inside = await asyncio.get_running_loop().run_in_executor(service.slow, inside_of, service, model)
    ids, segments = look.batch.ids[0], look.batch.segments[0]
    seen: LayerActivations = await service.call(
        context, model, partial(inside.run, ids, segments, depth), tokens * depth * SLOWER
    )
    return await service.cut(packed, seen.attention) if form == "base64" else seen.attention.round(6)


def packed(attention: np.ndarray) -> str:
    """Base64 of little-endian 16-bit numbers, each 65535 times the attention, in the order of the axes."""
    return base64.b64encode(np.rint(attention * TOP).astype("<u2").tobytes()).decode("ascii")
