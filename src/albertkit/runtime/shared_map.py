"""The space that the built-in English and Chinese vectors share: a translation has nearly the vector of its original.

In: unit vectors of `small` or `small-zh`. Out: the same texts in the shared space. English vectors are centred. Of
Chinese ones half of the mean is subtracted, and they are rotated, which keeps angles. `studies/shared_space.py` fits
the map on sentence pairs and writes `models/shared_space.safetensors`. `EmbedOptions.shared` uses it;
`search/shared_space.py` embeds each text with the model of its language.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from albertkit.builtin import MODELS
from albertkit.errors import AlbertkitError

FILE = MODELS / "shared_space.safetensors"
SPACES = ("own", "shared")


@dataclass(frozen=True)
class SharedMap:
    """From the space of one model to the shared one."""

    mean: np.ndarray  # (H,)
    rotation: np.ndarray | None  # (H, H)

    def apply(self, vectors: np.ndarray) -> np.ndarray:
        """Unit vectors (texts, H) in the shared space, not of length 1."""
        centred = vectors - self.mean
        return np.asarray(centred if self.rotation is None else centred @ self.rotation, np.float32)


@cache
def read_shared_maps() -> dict[str, SharedMap]:
    """The map of each model, by the identity of the model."""
    from safetensors import safe_open

    with safe_open(FILE, framework="numpy") as file:
        identities = file.metadata()
        arrays = {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}  # noqa: SIM118
    return {
        identities["small"]: SharedMap(arrays["small.mean"], None),
        identities["small-zh"]: SharedMap(arrays["small-zh.mean"], arrays["small-zh.rotation"]),
    }


def shared_map(identity: str) -> SharedMap:
    """The map of a model; an error for models without one."""
    result = next((mapping for key, mapping in read_shared_maps().items() if key.startswith(identity)), None)
    if result is None:
        raise AlbertkitError(
            "space='shared' is not available for this model: only the built-in models small and small-zh share a "
            "space. Use one of them, or omit space."
        )
    return result
