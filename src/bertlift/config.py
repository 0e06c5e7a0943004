"""The typed configuration: what ``conf/`` may hold and what every stage reads from ``params.yaml``.

Hydra composes ``conf/`` against these dataclasses (registered by ``hydra_plugins.bertlift_config``),
so a key that is misspelt or of the wrong type is refused with its path and the keys allowed there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Optional, cast, get_args, get_origin, get_type_hints

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from bertlift.errors import InputError

# OmegaConf reads these annotations at run time and knows ``Optional`` but not ``X | None``.
# ruff: noqa: UP045

# What OmegaConf raises for a key that the schema does not have.
UNKNOWN_KEY = (ConfigAttributeError, ConfigKeyError)
# Settings that name files of the user's.
FILE_KEY = re.compile(r"data\.(train|dev|showcase)|(reader|readers\.[\w-]+)\.(path|adapter)")
DATA_FILES = ("train", "dev", "showcase")
READER_DIRECTORIES = {"path": "a checkpoint directory", "adapter": "a directory with an adapter of peft"}
# Methods that take a fraction of a second for a question.
FAST_METHODS = (
    *("deeplift", "paper2019", "lrp", "gradient", "gradient_x_input", "gradcam"),
    *("attention", "rollout", "attention_x_gradient", "random"),
)


@dataclass
class HubData:
    """A data set on the Hugging Face hub that the ``download`` stage turns into SQuAD JSON files."""

    id: str = MISSING
    revision: str = "main"
    train: str = "train"  # split names
    dev: str = "validation"
    showcase: list[str] = field(default_factory=list)  # question ids to take from either split


@dataclass
class Data:
    """Where questions come from. Paths are SQuAD 1.1/2.0 JSON files or directories of them."""

    name: str = MISSING
    train: str = MISSING
    dev: str = MISSING
    showcase: str = MISSING  # every question here is explained and drawn, none is trained on
    limit: Optional[int] = None  # questions a split, spread over its articles; null: all
    hub: dict[str, HubData] = field(default_factory=dict)


@dataclass
class Reader:
    """The QA model: its source (``path`` before ``hub`` before ``package``) and how it reads."""

    name: str = MISSING
    package: Optional[str] = None  # a Python package that ships a checkpoint directory
    sha256: Optional[str] = None  # of that package's model.safetensors
    hub: Optional[str] = None
    revision: str = "main"
    path: Optional[str] = None  # a local checkpoint directory
    adapter: Optional[str] = None  # a directory with a low-rank adapter to merge into the checkpoint
    finetune: bool = True
    layers: Optional[int] = None  # the encoder's first so many; null: all
    answerable_only: bool = False  # as on SQuAD 1.1: trained on answerable questions alone, and never without an answer
    max_length: int = 384  # tokens a window
    doc_stride: int = 128  # tokens that consecutive windows of one passage share
    max_answer_length: int = 30  # tokens
    n_best: int = 20
    batch_size: int = 16  # windows at a time when predicting
    threads: int = 2  # results repeat exactly only for one and the same number of threads


@dataclass
class Training:
    """Fine-tuning with the ``transformers`` Trainer."""

    epochs: float = 2.0
    sentence_epochs: float = 0.0  # before those over passages: over the sentences that hold the answers
    learning_rate: float = 3e-5
    batch_size: int = 12
    warmup: float = 0.1  # share of the steps
    weight_decay: float = 0.01
    answerability: float = 0.0  # weight of the loss of "is there an answer", beside that of the span
    dropout: float = 0.1  # of hidden states and attention weights
    bfloat16: bool = False  # autocast, where the processor has instructions for it
    freeze_embeddings: bool = False
    adapter_rank: Optional[int] = None  # also write what training changed as a low-rank adapter; null: do not
    calibration: float = 0.1  # share of the training questions that only set the null threshold
    seed: int = 13


@dataclass
class AttributionSettings:
    """Which method explains the answers, and against what."""

    method: str = "deeplift"
    reference: str = "mask"
    batch_size: int = 8  # windows at a time
    limit: Optional[int] = None  # dev questions, spread over the articles; null: all
    samples: Optional[int] = None  # steps, noisy copies or sets of tokens, where a method draws them; null: its usual
    seed: int = 13  # of a method that draws


@dataclass
class Controls:
    """What the claims are held against."""

    limit: Optional[int] = 60  # dev questions, spread over the articles; null: all
    head_questions: int = 400  # training questions for the head on the encoder before fine-tuning
    seed: int = 13


@dataclass
class Heads:
    """The atlas of heads and their removal."""

    limit: Optional[int] = 96  # dev questions read for the atlas; null: all
    orders: int = 2  # random orders of removal
    seed: int = 13


@dataclass
class Clusters:
    """Clusters of the questions."""

    representation: str = "profile"  # or hidden, autoencoder
    algorithm: str = "kmeans"  # or gaussian_mixture, hdbscan (which finds k itself)
    k: Optional[int] = None  # null: the k of the best silhouette in k_min..k_max
    k_min: int = 2
    k_max: int = 8
    nearest: int = 5  # questions listed for each cluster, the medoid first
    bootstraps: int = 20
    nulls: int = 10  # times that the points are shuffled, to see what chance gives
    permutations: int = 200
    seed: int = 13


@dataclass
class Faithfulness:
    """How the methods are judged."""

    methods: list[str] = field(default_factory=lambda: list(FAST_METHODS))
    limit: Optional[int] = 20  # dev questions, spread over the articles; null: all
    checks: int = 4  # of these, questions explained again with a changed input and with random weights
    naopc: int = 0  # of these, questions for which the best and the worst order are searched
    out: str = "reports/metrics/faithfulness.json"
    page: str = "docs/methods.md"
    seed: int = 13


@dataclass
class Confidence:
    """The models that tell right answers from wrong ones."""

    folds: int = 10  # of articles; at most one an article
    seed: int = 13


@dataclass
class ReadersCompared:
    """The comparison of the pipeline's reader with those in ``readers``."""

    limit: Optional[int] = 20  # dev questions whose explanations are judged; null: all
    out: str = "reports/metrics/readers.json"
    seed: int = 13


@dataclass
class Map:
    """UMAP of the questions, by the representation that is clustered."""

    neighbors: int = 15
    min_dist: float = 0.1
    seed: int = 13


@dataclass
class Analysis:
    """What is made of the attributions."""

    controls: Controls = field(default_factory=Controls)
    heads: Heads = field(default_factory=Heads)
    clusters: Clusters = field(default_factory=Clusters)
    faithfulness: Faithfulness = field(default_factory=Faithfulness)
    confidence: Confidence = field(default_factory=Confidence)
    readers: ReadersCompared = field(default_factory=ReadersCompared)
    map: Map = field(default_factory=Map)


@dataclass
class Colors:
    """Ends and middle of the diverging scale; the default pair is safe for colour-blind readers."""

    negative: str = "#2166ac"
    zero: str = "#ffffff"
    positive: str = "#b2182b"


@dataclass
class Report:
    """How the figures and the page look."""

    title: str = "bertlift"
    colors: Colors = field(default_factory=Colors)
    dpi: int = 150


@dataclass
class Config:
    """Everything that ``params.yaml`` holds."""

    data: Data = field(default_factory=Data)
    reader: Reader = field(default_factory=Reader)
    readers: dict[str, Reader] = field(default_factory=dict)  # others, to compare with it
    training: Training = field(default_factory=Training)
    attribution: AttributionSettings = field(default_factory=AttributionSettings)
    analysis: Analysis = field(default_factory=Analysis)
    report: Report = field(default_factory=Report)


def allowed_keys(path: str) -> tuple[str, list[str]]:
    """The deepest known part of a dotted key, and the keys that are allowed below it.

    >>> allowed_keys("analysis.map.neighbours")
    ('analysis.map', ['min_dist', 'neighbors', 'seed'])
    >>> allowed_keys("data.hub.squad_v2.split")
    ('data.hub.squad_v2', ['dev', 'id', 'revision', 'showcase', 'train'])
    """
    kind: Any = Config
    node, known = kind, ""
    walked: list[str] = []
    for part in path.split(".")[:-1]:
        kind = get_args(kind)[1] if get_origin(kind) is dict else get_type_hints(kind).get(part)
        if not is_dataclass(kind) and get_origin(kind) is not dict:
            break
        walked.append(part)
        if is_dataclass(kind):
            node, known = kind, ".".join(walked)
    return known, sorted(each.name for each in fields(node))


def unknown_key(path: str, where: str) -> str:
    """The line that refuses an unknown key."""
    below, keys = allowed_keys(path)
    place = f"under '{below}'" if below else "at the top level"
    return f"{where}: unknown key '{path}'; allowed {place}: {', '.join(keys)}"


def _all_readers(config: Config) -> dict[str, Reader]:
    """The pipeline's reader and those it is compared with, by the path of their settings."""
    return {"reader": config.reader} | {f"readers.{name}": each for name, each in config.readers.items()}


def _check_ranges(config: Config, where: str) -> None:
    """Refuse values that have the right type but no meaning."""
    at_least: dict[str, tuple[float | None, float]] = {
        "data.limit": (config.data.limit, 1),
        "training.sentence_epochs": (config.training.sentence_epochs, 0),
        "training.learning_rate": (config.training.learning_rate, 0),
        "training.adapter_rank": (config.training.adapter_rank, 1),
        "training.answerability": (config.training.answerability, 0),
        "training.batch_size": (config.training.batch_size, 1),
        "training.weight_decay": (config.training.weight_decay, 0),
        "training.seed": (config.training.seed, 0),
        "attribution.batch_size": (config.attribution.batch_size, 1),
        "attribution.limit": (config.attribution.limit, 1),
        "attribution.samples": (config.attribution.samples, 1),
        "attribution.seed": (config.attribution.seed, 0),
        "analysis.controls.limit": (config.analysis.controls.limit, 1),
        "analysis.controls.head_questions": (config.analysis.controls.head_questions, 1),
        "analysis.controls.seed": (config.analysis.controls.seed, 0),
        "analysis.heads.limit": (config.analysis.heads.limit, 2),
        "analysis.heads.orders": (config.analysis.heads.orders, 1),
        "analysis.heads.seed": (config.analysis.heads.seed, 0),
        "analysis.clusters.k": (config.analysis.clusters.k, 1),
        "analysis.clusters.k_min": (config.analysis.clusters.k_min, 2),
        "analysis.clusters.k_max": (config.analysis.clusters.k_max, config.analysis.clusters.k_min),
        "analysis.clusters.nearest": (config.analysis.clusters.nearest, 1),
        "analysis.clusters.bootstraps": (config.analysis.clusters.bootstraps, 2),
        "analysis.clusters.nulls": (config.analysis.clusters.nulls, 2),
        "analysis.clusters.permutations": (config.analysis.clusters.permutations, 1),
        "analysis.clusters.seed": (config.analysis.clusters.seed, 0),
        "analysis.faithfulness.limit": (config.analysis.faithfulness.limit, 1),
        "analysis.faithfulness.checks": (config.analysis.faithfulness.checks, 0),
        "analysis.faithfulness.naopc": (config.analysis.faithfulness.naopc, 0),
        "analysis.faithfulness.seed": (config.analysis.faithfulness.seed, 0),
        "analysis.confidence.folds": (config.analysis.confidence.folds, 2),
        "analysis.confidence.seed": (config.analysis.confidence.seed, 0),
        "analysis.readers.limit": (config.analysis.readers.limit, 1),
        "analysis.readers.seed": (config.analysis.readers.seed, 0),
        "analysis.map.neighbors": (config.analysis.map.neighbors, 2),
        "analysis.map.min_dist": (config.analysis.map.min_dist, 0),
        "analysis.map.seed": (config.analysis.map.seed, 0),
        "report.dpi": (config.report.dpi, 40),
    }
    for name, reader in _all_readers(config).items():
        at_least |= {
            f"{name}.layers": (reader.layers, 1),
            f"{name}.max_length": (reader.max_length, 16),
            f"{name}.doc_stride": (reader.doc_stride, 0),
            f"{name}.max_answer_length": (reader.max_answer_length, 1),
            f"{name}.n_best": (reader.n_best, 1),
            f"{name}.batch_size": (reader.batch_size, 1),
            f"{name}.threads": (reader.threads, 1),
        }
    for key, (value, least) in at_least.items():
        if value is not None and math.isinf(value):
            raise InputError(f"{where}: {key} is {value}; allowed: a finite number")
        if value is not None and not value >= least:
            raise InputError(f"{where}: {key} is {value}; allowed: {least} or more")
    if not 0 < config.training.epochs < math.inf:
        raise InputError(f"{where}: training.epochs is {config.training.epochs}; allowed: more than 0, and finite")
    for name, reader in _all_readers(config).items():
        if not re.fullmatch(r"reader|readers\.[\w-]+", name):
            raise InputError(f"{where}: {name}: allowed in the name of a reader: letters, digits, '_' and '-'")
        if reader.path is None and reader.hub is None and reader.package is None:
            raise InputError(
                f"{where}: {name}.path: missing; give a checkpoint directory, or {name}.hub or {name}.package"
            )
        if reader.adapter is not None and reader.finetune:
            raise InputError(
                f"{where}: {name}.adapter: is for a ready reader; set {name}.finetune=false, or leave it out"
            )
    if config.training.adapter_rank is not None and not config.training.freeze_embeddings:
        raise InputError(
            f"{where}: training.adapter_rank: an adapter holds no embeddings; set training.freeze_embeddings=true"
        )
    for name in ("warmup", "calibration", "dropout"):
        share = getattr(config.training, name)
        if not 0 <= share < 1:
            raise InputError(f"{where}: training.{name} is {share}; allowed: 0 up to, not including, 1")


def _check_shape(kind: Any, values: Any, where: str, path: str = "") -> None:
    """Refuse a section that is no mapping, and a value still to be given, which merging would pass over."""
    if values == MISSING:
        raise InputError(f"{where}: {path}: missing mandatory value; give one")
    inner = get_type_hints(kind) if is_dataclass(kind) else {}
    if not isinstance(values, Mapping):
        if inner or get_origin(kind) is dict:
            keys = f"; allowed keys: {', '.join(sorted(inner))}" if inner else ""
            raise InputError(f"{where}: {path}: expected a mapping, found {values!r}{keys}")
        return
    for key, value in values.items():
        below = get_args(kind)[1] if get_origin(kind) is dict else inner.get(key)
        _check_shape(below, value, where, f"{path}.{key}".lstrip("."))


def typed(values: Any, where: str) -> Config:
    """Check plain values (a mapping, or a composed ``DictConfig``) against the schema.

    Raises:
        InputError: for an unknown key, a value of the wrong type or out of range, or a key without
            a value, each with ``where`` (the file) and the key's path.
    """
    _check_shape(Config, OmegaConf.to_container(values) if isinstance(values, DictConfig) else values, where)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Config), values)
        OmegaConf.resolve(merged)
        config = cast(Config, OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        key = str(getattr(error, "full_key", "") or "")
        if isinstance(error, UNKNOWN_KEY) and key:
            raise InputError(unknown_key(key, where)) from error
        first = str(error).splitlines()[0]
        raise InputError(f"{where}: {key or 'configuration'}: {first}") from error
    _check_ranges(config, where)
    return config


def check_files(config: Config, root: Path, where: str) -> None:
    """Refuse files of the user's that do not exist; relative paths are relative to ``root``, the project.

    Raises:
        InputError: one line for each missing file.
    """
    faults = []
    for name in () if config.data.hub else DATA_FILES:  # what the download stage will write need not be there yet
        value = getattr(config.data, name)
        if not (value and (root / value).exists()):
            faults.append(
                f"{where}: data.{name} is {value!r}: no such file or directory in {root}; give a SQuAD JSON file or a "
                f"directory of them"
            )
    for name, reader in _all_readers(config).items():
        for key, what in READER_DIRECTORIES.items():
            value = getattr(reader, key)
            if value is not None and not (value and (root / value).is_dir()):
                faults.append(f"{where}: {name}.{key} is {value!r}: no such directory in {root}; give {what}")
    if faults:
        raise InputError("\n".join(faults))


def load_params(path: Path | str = "params.yaml") -> Config:
    """Read ``params.yaml`` as the typed configuration; raises :class:`InputError`."""
    try:
        values = OmegaConf.load(path)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; run from the project's root, where dvc.yaml stands") from error
    except Exception as error:  # yaml's own errors are many
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, DictConfig):
        raise InputError(f"{path}: expected a mapping of settings, found a list")
    return typed(values, str(path))
