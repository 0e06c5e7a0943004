"""One thin module a DVC stage: read params and inputs, call the rooms, write outputs."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import yaml
from omegaconf import OmegaConf

from bertlift.config import Config, load_params
from bertlift.errors import InputError

KEPT = Path(".dvc/tmp/bertlift")

# What the stages hand on to each other. Here, so that a light stage need not import a heavy one for a path.
PREPARED = Path("data/prepared")
READER = Path("data/reader")
COMPARED = Path("data/compared")
READINGS = Path("data/readings")
PREDICTIONS = Path("data/predictions")
ATTRIBUTIONS = Path("data/attributions")
CONTROLS = Path("data/controls")
METHOD_EXAMPLES = Path("data/methods")
HEADS = Path("data/heads.json")
TRAJECTORIES = Path("data/trajectories.json")
CLUSTERS = Path("data/clusters.json")
MAP = Path("data/map.csv")
LAYER_MAPS = Path("data/layer_maps.csv")
METRICS = Path("reports/metrics")


def outputs_of(stage: str) -> list[Path]:
    """What ``dvc.yaml`` says the stage writes, its settings filled in; nothing where there is no ``dvc.yaml``."""
    file = Path("dvc.yaml")
    if not file.is_file():
        return []
    name, _, key = stage.partition("@")
    entry = yaml.safe_load(file.read_text(encoding="utf-8"))["stages"].get(name, {})
    entry = entry.get("do", entry)
    listed = [*entry.get("outs", []), *entry.get("metrics", []), *entry.get("plots", [])]
    settings = OmegaConf.load("params.yaml") if Path("params.yaml").is_file() else OmegaConf.create()
    OmegaConf.update(settings, "key", key)
    names = [next(iter(each)) if isinstance(each, dict) else each for each in listed]
    return [Path(re.sub(r"\$\{(.+?)\}", lambda key: str(OmegaConf.select(settings, key[1])), name)) for name in names]


def _link(source: str | Path, target: str | Path) -> None:
    """A hard link, or where the file system has none a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _copy(source: Path, target: Path) -> None:
    """Copy a file or directory by hard links, which take no room."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_link)
    else:
        _link(source, target)


def _keep(stage: str) -> None:
    """Remember a finished stage's outputs: DVC removes them before it runs the stage again."""
    if Path(".dvc").is_dir():
        for path in outputs_of(stage):
            if path.exists():
                _copy(path, KEPT / path)


def _bring_back(stage: str) -> list[str]:
    """After a failure, put back the outputs that DVC removed; returns what now stands as before."""
    stand = []
    for path in outputs_of(stage):
        if not path.exists() and (KEPT / path).exists():
            _copy(KEPT / path, path)
        if path.exists():
            stand.append(str(path))
    return stand


def run(stage: str, work: Callable[[Config], None]) -> None:
    """Run a stage with the settings in ``params.yaml``, and end the process.

    A fault of the user's ends with one line (each) on standard error and exit status 1. Whatever the
    failure, the stage's earlier outputs are still there afterwards.
    """
    try:
        work(load_params())
        _keep(stage)
    except BaseException as error:
        stand = _bring_back(stage)
        after = f"; kept as they were: {', '.join(stand)}" if stand else ""
        if isinstance(error, InputError):
            for line in str(error).splitlines():
                print(f"bertlift {stage}: {line}", file=sys.stderr)
        elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            place = f" writing {error.filename}" if error.filename else ""
            print(
                f"bertlift {stage}: no room left on the disk{place} ({error.strerror}); make room and run again{after}",
                file=sys.stderr,
            )
        elif isinstance(error, KeyboardInterrupt):
            print(f"bertlift {stage}: interrupted{after}", file=sys.stderr)
        else:
            raise
        sys.exit(1)
