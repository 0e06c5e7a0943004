"""The engine: exact DeepLIFT through a transformer encoder, for all layers and heads in one backward pass.

``rules`` holds the multipliers of the non-linear operations, ``tape`` finds those operations in a
model without touching its code, ``references`` makes the reference inputs, ``attribute`` puts them
together. Two other rules to compare with: ``paper2019``, of the paper's own code, and ``attnlrp``, of LXT.
"""

from bertlift.engine.attribute import Contributions, deeplift

__all__ = ["Contributions", "deeplift"]
