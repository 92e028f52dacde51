"""A server for artifacts: the interfaces that programs already speak, one process, no torch.

In: model folders. Out: HTTP. `settings.py` says how; `models.py` opens and reloads; `batcher.py` computes what all clients ask for
together; `work.py` turns requests into rows for it and rows into answers; `openai.py`, `tei.py`, `own.py` are the endpoints;
`schema.py` their shapes, `openapi.py` their description; `app.py` puts them behind one door, `guard.py`; `run.py` listens.
"""
