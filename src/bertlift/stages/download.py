"""Turn a data set of the Hugging Face hub into SQuAD JSON files, beside the commit they came from."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from datasets import load_dataset

from bertlift import hub
from bertlift.config import Config, HubData
from bertlift.errors import InputError
from bertlift.files import write_json
from bertlift.squad.schema import Answer, Question, write_squad
from bertlift.stages import run


def questions_of(rows: Iterable[dict[str, Any]], where: str) -> list[Question]:
    """Questions from rows in the hub's SQuAD layout (``answers`` holds the lists ``text`` and ``answer_start``).

    Raises:
        InputError: if a column is missing.
    """
    try:
        return [
            Question(
                id=row["id"],
                question=row["question"],
                context=row["context"],
                title=row["title"],
                answers=tuple(
                    Answer(text, start)
                    for text, start in zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
                ),
            )
            for row in rows
        ]
    except (KeyError, TypeError) as error:
        raise InputError(f"{where}: not in SQuAD's layout (id, title, context, question, answers): {error}") from error


def read_splits(settings: HubData) -> tuple[list[Question], list[Question], str]:
    """The two splits of a hub data set, and the commit they came from."""
    directory, commit = hub.snapshot(settings.id, settings.revision, "dataset", ["*.parquet"])
    found = []
    for split in (settings.train, settings.dev):
        files = sorted(str(file) for file in directory.rglob(f"{split}-*.parquet"))
        if not files:
            has = sorted({file.name.split("-")[0] for file in directory.rglob("*.parquet")})
            raise InputError(
                f"hub dataset {settings.id!r} has no split {split!r} as parquet; it has: {', '.join(has) or 'none'}"
            )
        places = sorted({str(Path(file).parent.relative_to(directory)) for file in files})
        if len(places) > 1:
            raise InputError(
                f"hub dataset {settings.id!r} has split {split!r} in several configurations: {', '.join(places)}; "
                f"allowed: one"
            )
        rows = load_dataset("parquet", data_files=files, split="train")
        found.append(questions_of(rows, f"hub dataset {settings.id!r}, split {split!r}"))
    return found[0], found[1], commit


def download(config: Config, name: str) -> None:
    """Write ``train.json``, ``dev.json``, ``showcase.json`` and ``source.json`` under ``data/hub/NAME``."""
    settings = config.data.hub[name]
    train, dev, commit = read_splits(settings)
    by_id = {question.id: question for question in (*dev, *train)}
    missing = [identity for identity in settings.showcase if identity not in by_id]
    if missing:
        raise InputError(f"data.hub.{name}.showcase: no question {', '.join(missing)} in {settings.id!r}")
    directory = Path("data/hub") / name
    write_squad(directory / "train.json", train)
    write_squad(directory / "dev.json", dev)
    write_squad(directory / "showcase.json", [by_id[identity] for identity in settings.showcase])
    write_json(directory / "source.json", {"id": settings.id, "revision": settings.revision, "commit": commit})


if __name__ == "__main__":
    run(f"download@{sys.argv[1]}", lambda config: download(config, sys.argv[1]))
