"""What makes a forward of few rows cheap on a CPU; no knowledge of drafting."""

from draftproof.kernels.choice import choose
from draftproof.kernels.modules import MAX_ROWS, FewRowLinear, Int8Linear, is_available
from draftproof.kernels.quantization import Quantized, dequantize, quantize

__all__ = [
    "MAX_ROWS",
    "FewRowLinear",
    "Int8Linear",
    "Quantized",
    "choose",
    "dequantize",
    "is_available",
    "quantize",
]
