"""Read and check the questions: train, dev and showcase as SQuAD 2.0 JSON."""

from __future__ import annotations

import re
from dataclasses import replace

from bertlift.analysis.groups import plain
from bertlift.config import Config
from bertlift.errors import InputError
from bertlift.squad.schema import Question, check_splits, read_squad, spread, write_squad
from bertlift.stages import PREPARED, run


def named(questions: list[Question]) -> list[Question]:
    """Give every showcase question a short name that is fit for a file name and its own."""
    taken: set[str] = set()
    result = []
    for question in questions:
        stem = re.sub(r"[^a-z0-9]+", "-", plain(question.name or question.title)).strip("-") or "example"
        name, number = stem, 1
        while name in taken:
            number += 1
            name = f"{stem}-{number}"
        taken.add(name)
        result.append(replace(question, name=name))
    return result


def prepare(config: Config) -> None:
    """Write ``train.json``, ``dev.json`` and ``showcase.json`` under ``data/prepared``."""
    data = config.data
    faults = []
    read: list[list[Question]] = []
    for path in (data.train, data.dev, data.showcase):
        try:
            read.append(read_squad(path))
        except InputError as error:
            faults.append(str(error))
    if faults:
        raise InputError("\n".join(faults))
    train, dev, showcase = read
    shown = {(question.title, question.context) for question in showcase}
    # A passage that is explained must not have been trained on; SQuAD's own train set holds the paper's.
    kept = [question for question in train if (question.title, question.context) not in shown]
    if not kept:
        raise InputError(
            f"{data.train}: every passage is in data.showcase={data.showcase} too; none is left to train on"
        )
    check_splits(kept, dev, (data.train, data.dev))
    asked = {question.id: question for question in dev}
    clashes = [
        f"{data.showcase}: article {q.title!r}: question {q.id}: this id is in {data.dev} too, over another passage"
        for q in showcase
        if q.id in asked and asked[q.id].context != q.context
    ]
    if clashes:
        raise InputError("\n".join(clashes))
    write_squad(PREPARED / "train.json", spread(kept, data.limit))
    write_squad(PREPARED / "dev.json", spread(dev, data.limit))
    write_squad(PREPARED / "showcase.json", named(showcase))
    print(f"prepared {len(spread(kept, data.limit))} training, {len(spread(dev, data.limit))} dev questions")


if __name__ == "__main__":
    run("prepare", prepare)
