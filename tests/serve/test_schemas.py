"""Requests that are not valid: one sentence with the value, the rule and the remedy."""

from __future__ import annotations

import msgspec
import pytest

from albertkit.serve.schemas import validation_error
from albertkit.serve.tasks_api import GenerateRequest
from albertkit.serve.tei import EmbedRequest, PredictRequest

REMEDY = "Correct it; see /openapi.json."


@pytest.mark.parametrize(
    ("request_type", "body", "field", "message"),
    [
        (GenerateRequest, b"{}", "texts", "the field 'texts' is missing, and the request needs it. Add it."),
        (GenerateRequest, b'{"texts": 3}', "texts", f"texts=3 is not valid: it must be a text or a list. {REMEDY}"),
        (
            GenerateRequest,
            b'{"texts": "a", "beam": 3}',
            "beam",
            "unknown field 'beam' (did you mean 'beams'?). Correct its name or remove it.",
        ),
        (
            GenerateRequest,
            b'{"texts": "a", "beams": 99}',
            "beams",
            f"beams=99 is not valid: it must be a whole number, at most 16. {REMEDY}",
        ),
        (
            EmbedRequest,
            b'{"inputs": "a", "pooling": "sum"}',
            "pooling",
            f'pooling="sum" is not valid: it must be one of mean, cls, pooler, max. {REMEDY}',
        ),
        (
            PredictRequest,
            b'{"inputs": [["a", "b", "c"]]}',
            "inputs[0]",
            f'inputs[0]=["a", "b", "c"] is not valid: it must be a list of length at most 2. {REMEDY}',
        ),
        (PredictRequest, b"[]", None, f"body=[] is not valid: it must be a JSON object. {REMEDY}"),
        (
            PredictRequest,
            b'{"inputs": [[1]], "inputs": 2}',
            "inputs[0][0]",
            f"inputs[0][0]=2 is not valid: it must be a text. {REMEDY}",
        ),
    ],
)
def test_an_invalid_request_names_value_rule_and_remedy(request_type, body, field, message):
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=request_type)
    found = validation_error(caught.value, msgspec.json.decode(body), request_type)
    assert (found.status, found.param, found.message) == (422, field, message)
