"""The HTTP server: OpenAI's and text-embeddings-inference's endpoints and albertkit's own. One process, no torch.

In: model folders. Out: HTTP. Files in order: `serve_settings.py`, `served_models.py` (open and reload),
`batch_queue.py` and `batcher.py` (compute the rows of all requests together), `inference.py` (requests to jobs, jobs
to results), the endpoints (`openai.py`, `tei.py`, `tasks_api.py`, `search_api.py`, `explain_api.py`),
`middleware.py`, `app.py`, `server.py`.
"""
