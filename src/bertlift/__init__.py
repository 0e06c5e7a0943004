"""bertlift shows, layer by layer, why a BERT question-answering model gave its answer."""

from importlib.metadata import version

__version__ = version("bertlift")
