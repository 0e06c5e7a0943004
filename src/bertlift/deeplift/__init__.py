"""The engine: exact DeepLIFT through a transformer encoder, for all layers in one backward pass.

``rules`` holds the multipliers of the non-linear operations, ``tape`` finds those operations in a
model without touching its code, ``references`` makes the reference inputs, ``attribute`` puts them
together.
"""

from bertlift.deeplift.attribute import Contributions, deeplift

__all__ = ["Contributions", "deeplift"]
