"""Indexes in vector stores: `pgvector.py` for Postgres, `lancedb.py`, `qdrant.py`. Each client is an extra.

In: a `StoreAddress`. Out: a `StoreOpener`, with which `index.py` opens indexes.
"""

from __future__ import annotations

from albertkit.search.store_address import StoreAddress
from albertkit.search.stores.store_index import StoreOpener


def open_store(address: StoreAddress) -> StoreOpener:
    """What opens the index at an address. It imports the client of the store."""
    if address.store == "pgvector":
        from albertkit.search.stores.pgvector import PgvectorIndex

        return StoreOpener(address, PgvectorIndex)
    if address.store == "qdrant":
        from albertkit.search.stores.qdrant import QdrantIndex

        return StoreOpener(address, QdrantIndex)
    from albertkit.search.stores.lancedb import LancedbIndex

    return StoreOpener(address, LancedbIndex)
