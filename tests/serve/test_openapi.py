"""Whatever its own description allows, and much that it does not: no fault of the server, and every answer as
described.
"""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from albertkit.serve.app import description

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
)
OPERATIONS = [found.ok() for found in schemathesis.openapi.from_dict(description()).get_all_operations()]
CASES = [(o, mode) for o in OPERATIONS for mode in GenerationMode if o.body or mode == GenerationMode.POSITIVE]


EXAMPLES = {GenerationMode.POSITIVE: 20, GenerationMode.NEGATIVE: 8}
UNLIKELY = (
    "/fill",
    "/search",
    "/admin/reload",
    "/v1/models/{name}",
    "/browser/{name}",
)  # a [MASK], an index, a key, a name: not by chance


@pytest.mark.parametrize(("operation", "mode"), CASES, ids=lambda v: getattr(v, "label", None) or v.value)
def test_answers_are_as_described(server, operation, mode):
    seen = set()

    @given(operation.as_strategy(mode))
    @settings(
        max_examples=EXAMPLES[mode] if operation.body else 3,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def ask(case):
        if mode == GenerationMode.POSITIVE and isinstance(case.body, dict) and "model" in case.body:
            case.body.pop("model")  # no chance would find a name that is served
            if operation.path == "/v1/embeddings":
                case.body["model"] = "words"
        seen.add(case.call_and_validate(base_url=server.url, checks=CHECKS).status_code)

    ask()
    assert mode == GenerationMode.NEGATIVE or operation.path in UNLIKELY or 200 in seen, seen
