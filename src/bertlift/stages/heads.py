"""The atlas of heads, and what their removal does to the span score."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from bertlift.analysis.heads import KINDS, attended, behind_heads, confidence, label_of, order_of, removal
from bertlift.attribution import load_attributions
from bertlift.config import Config
from bertlift.files import write_json
from bertlift.methods.attentions import telling_weights
from bertlift.methods.explain import target_of
from bertlift.reader.load import load_reader
from bertlift.reader.predict import Prediction, collate
from bertlift.reader.windows import batches
from bertlift.squad.schema import read_squad, spread
from bertlift.stages import ATTRIBUTIONS, HEADS, METRICS, PREDICTIONS, PREPARED, READER, run


def heads(config: Config) -> None:
    """Write ``data/heads.json`` (the atlas) and ``reports/metrics/heads.json`` (the removal).

    The heads are ranked on every second of the questions and taken out on the others.
    """
    settings = config.analysis.heads
    torch.set_num_threads(config.reader.threads)
    reader = load_reader(READER)
    model = reader.model
    by_id = {each.question_id: each for each in load_attributions(ATTRIBUTIONS)}
    dev = [each for each in spread(read_squad(PREPARED / "dev.json"), settings.limit) if each.id in by_id]
    nbest = json.loads((PREDICTIONS / "nbest.json").read_text(encoding="utf-8"))
    targets = [target_of(Prediction.from_json(question, nbest[question.id]), reader) for question in dev]
    explained = [by_id[question.id] for question in dev]
    shape = (len(dev), model.config.num_hidden_layers, model.config.num_attention_heads)
    kinds, sure = np.zeros((*shape, len(KINDS))), np.zeros(shape)
    windows = [window for window, _, _ in targets]
    given = []
    for indices in tqdm(list(batches(windows, config.reader.batch_size)), desc="attention", disable=None):
        inputs = collate([windows[index] for index in indices], reader.tokenizer)
        starts, ends = (torch.tensor([targets[index][side] for index in indices]) for side in (1, 2))
        given.append((indices, inputs, starts, ends))
        with torch.no_grad(), telling_weights(model):
            attention = torch.stack(model(**inputs, output_attentions=True).attentions, dim=1)
        for row, index in enumerate(indices):
            size = len(windows[index].input_ids)
            weights = attention[row, :, :, :size, :size].double().numpy()
            kinds[index], sure[index] = attended(explained[index], weights), confidence(weights)
    # Without a split by heads (another method, another kind of encoder) there is no contribution to show.
    split = all(each.value_path.size for each in explained)
    value, paths = ([np.array(getattr(each, name)) for each in explained] for name in ("value_path", "attention_path"))
    by_head = np.array(value) + np.array(paths) if split else np.zeros((len(dev), 0))
    atlas = {
        "questions": len(dev),
        "kinds": list(KINDS),
        "attended": np.round(kinds.mean(0), 6).tolist(),
        "labels": [[label_of(head) for head in layer] for layer in kinds.mean(0)],
        "confidence": np.round(sure.mean(0), 6).tolist(),
    }
    if split:
        sizes = {"positive": by_head.clip(min=0), "negative": by_head.clip(max=0)}
        sizes |= {"value_path": np.array(value), "attention_path": np.array(paths)}
        atlas |= {name: np.round(each.mean(0), 6).tolist() for name, each in sizes.items()}
    metrics: dict[str, Any] = {}
    if behind_heads(model) is not None and len(dev) > 1:
        ranking, testing = np.arange(len(dev)) % 2 == 0, np.arange(len(dev)) % 2 == 1
        every = order_of(sure[0])
        shuffle = random.Random(settings.seed)  # noqa: S311 - no secret
        orders = {"contribution": [order_of(by_head[ranking].mean(0))]} if split else {}
        orders |= {"attention weight": [order_of(sure[ranking].mean(0))]}
        orders |= {"at random": [shuffle.sample(every, len(every)) for _ in range(settings.orders)]}
        tested = []
        for indices, inputs, starts, ends in given:
            kept = torch.tensor([testing[index] for index in indices])
            if kept.any():
                tested.append(({name: each[kept] for name, each in inputs.items()}, starts[kept], ends[kept]))
        counts = [count for count in (1, 2, 4, 8, 16, 32) if count < len(every)]
        metrics = removal(model, tested, orders, counts, settings.seed)
        metrics["carry_most"] = [
            {"layer": layer + 1, "head": head, "label": atlas["labels"][layer][head]}
            for layer, head in (orders.get("contribution") or orders["attention weight"])[0][:8]
        ]
    write_json(HEADS, atlas)
    write_json(METRICS / "heads.json", metrics)
    print(f"{len(dev)} questions read for the atlas of {shape[1]} x {shape[2]} heads")


if __name__ == "__main__":
    run("heads", heads)
