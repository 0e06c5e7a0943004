"""bertlift shows, layer by layer, why a BERT question-answering model gave its answer."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertlift.engine import Contributions, deeplift

__all__ = ["Contributions", "deeplift"]
__version__ = version("bertlift")


def __getattr__(name: str) -> Any:
    """``deeplift`` and its result, loaded when asked for: torch is not needed to read a configuration."""
    if name in __all__:
        from bertlift import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
