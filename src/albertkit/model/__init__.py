"""The model in torch, top to bottom: `packed_batch.py`, `attention.py`, `encoder.py`, `albert_model.py`.

Further modules: `optional_modules.py` (options beyond ALBERT), `head_export.py` (heads of users as ONNX graphs) and
`fusion.py` (features of images, sounds or sensors).
"""

from albertkit.model.albert_model import AlbertModel, ModelOutput, pool
from albertkit.model.encoder import Encoder, EncoderOutput
from albertkit.model.packed_batch import Batch

__all__ = ["AlbertModel", "Batch", "Encoder", "EncoderOutput", "ModelOutput", "pool"]
