"""Writing results so that a reader finds the old one or the new one, never half of one."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success what was written there takes its place.

    The caller writes a file, or makes a directory, at the yielded path. If the block raises, the
    temporary is removed and whatever stood at ``path`` stays as it was.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        new, aside = scratch / target.name, scratch / f"{target.name}.old"
        yield new
        if new.is_dir() and target.is_dir():
            # rename() cannot replace a directory that holds files: step the old one aside first.
            os.rename(target, aside)
        try:
            os.replace(new, target)
        except BaseException:
            if aside.exists():
                os.rename(aside, target)
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_text(path: Path | str, text: str) -> None:
    """Write ``text`` as UTF-8 to ``path``, whole or not at all."""
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    """Write ``value`` as indented UTF-8 JSON to ``path``; NaN and infinity are refused (ValueError)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
