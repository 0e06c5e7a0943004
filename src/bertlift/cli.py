"""The ``bertlift`` command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from bertlift.config import FILE_KEY
from bertlift.errors import InputError

USAGE = """usage: bertlift sweep [--multirun] [hydra options] key=value[,value...] ...
       bertlift corpus check [directory]

sweep   run the pipeline as DVC experiments in workspaces of their own, one for each combination of
        values: bertlift sweep --multirun analysis.clusters.k=4,6
        Stages whose settings do not change come from DVC's cache; compare with: dvc exp show
corpus  check the corpus in a directory (data/corpus) with the splits train and dev: spans, wording, balance,
        near-duplicates; print its size and balance as JSON
"""


def absolute_files(overrides: list[str], root: Path) -> list[str]:
    """Overrides with the user's files as absolute paths: an experiment runs in a workspace elsewhere.

    Paths inside ``root`` stay as they are; the workspace has them too.
    """
    result = []
    for override in overrides:
        key, separator, value = override.partition("=")
        path = (root / value).resolve() if separator and value and FILE_KEY.fullmatch(key) else None
        outside = path is not None and not path.is_relative_to(root.resolve())
        result.append(f"{key}={path}" if outside else override)
    return result


@hydra.main(config_path=None, config_name="config", version_base=None)
def _sweep(_: DictConfig) -> None:
    """One job of the sweep: a DVC experiment in a temporary workspace."""
    root = Path(hydra.utils.get_original_cwd())
    command = [sys.executable, "-m", "dvc", "exp", "run", "--temp"]
    for override in absolute_files(list(HydraConfig.get().overrides.task), root):
        command += ["--set-param", override]
    # The stages call `python`: the one that runs this, also where its environment is not activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(command, cwd=root, env=os.environ | {"PATH": path}, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def _corpus(arguments: list[str]) -> None:
    if arguments[:1] != ["check"] or len(arguments) > 2:
        _refuse(f"bertlift corpus: given {' '.join(arguments) or 'nothing'}; allowed: check [directory]")
    from bertlift.analysis.corpus import check_corpus  # here: its imports take a second that a sweep need not wait

    directory = Path(arguments[1] if len(arguments) > 1 else "data/corpus")
    try:
        found = check_corpus(directory)
    except InputError as error:
        _refuse("\n".join(f"bertlift corpus: {line}" for line in str(error).splitlines()), status=1)
    print(json.dumps(found, indent=2))


def _refuse(message: str, status: int = 2) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(status)


def main() -> None:
    """Entry point of the ``bertlift`` command."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        sys.exit(0 if arguments else 2)
    if arguments[0] == "corpus":
        return _corpus(arguments[1:])
    if arguments[0] != "sweep":
        _refuse(f"bertlift: there is no command {arguments[0]!r}; allowed: corpus, sweep (bertlift --help)")
    if not (Path("conf/config.yaml").is_file() and Path("dvc.yaml").is_file()):
        _refuse("bertlift sweep: no conf/config.yaml and dvc.yaml here; run it in the project's root")
    sys.argv = [f"{sys.argv[0]} sweep", f"--config-dir={Path('conf').resolve()}", *arguments[1:]]
    _sweep()
