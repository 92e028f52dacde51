"""The HTTP server: OpenAI's and text-embeddings-inference's endpoints and albertkit's own. One process, no torch.

In: model folders. Out: HTTP. Files in order: `serve_settings.py`, `served_models.py` and `served_indexes.py` (open and
reload), `batcher.py` (compute the rows of all requests together), `inference.py` (requests to jobs, jobs to results),
the endpoints (`openai.py`, `cohere.py`, `tei.py`, `tasks_api.py`, `search_api.py`, `explain_api.py`,
`browser_files.py`), `middleware.py`, `app.py`, `telemetry.py` and `otlp.py` (traces and metrics), `web_security.py`,
`connection_limits.py`, `http_protocol.py`, `server.py`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """This package is callable: `from albertkit import serve; serve([...])` starts the server."""

    def __call__(self, *models: Any, **settings: Any) -> None:
        """See `albertkit.serve.server.serve`."""
        from albertkit.serve.server import serve

        serve(*models, **settings)


sys.modules[__name__].__class__ = CallablePackage
