"""A copy of the project in which tests run the whole DAG."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from conftest import ROOT

STAGES = (
    *("prepare", "finetune", "evaluate", "attribute", "controls", "faithfulness", "claims", "heads"),
    *("finetune_compared@minilm_1", "readers", "confidence", "cluster", "project", "report"),
)
RESULTS = ("reports/", "docs/findings.md", "docs/methods.md", "dvc.lock")


class Workspace:
    """A copy of the project in a Git repository of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # Python may write its compiled files, as it does for a user: DVC must not take them for changes.
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        self.environment = inherited | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(root / "src"),
            "HF_HUB_OFFLINE": "1",
        }

    def run(self, *command: str, ok: bool = True) -> str:
        done = subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=900, check=False
        )
        output = done.stdout + done.stderr
        assert (done.returncode == 0) is ok, output
        return output

    def read(self, path: str):
        return json.loads((self.root / path).read_text(encoding="utf-8"))

    def hashes(self) -> dict[str, str]:
        """Output path -> hash, from dvc.lock."""
        lock = yaml.safe_load((self.root / "dvc.lock").read_text(encoding="utf-8"))
        return {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage["outs"]}

    def commit(self, message: str) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--message", message)

    def restore(self) -> None:
        """Back to the last commit, and the outputs that belong to it."""
        self.run("git", "checkout", "--quiet", "--", ".")
        self.run("dvc", "checkout", "--force", "--quiet")


def copy_of_the_project(root: Path) -> Workspace:
    """A copy of every file that is under version control or could be, without the results, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in listed:
        # Results of the real run stay out: what is found below must have been made here.
        if not name.startswith(RESULTS) and (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    made = Workspace(root)
    made.run("git", "init", "--quiet")
    made.run("git", "config", "user.name", "test")
    made.run("git", "config", "user.email", "test@example.org")
    made.commit("copy")
    return made


def ran(output: str) -> list[str]:
    """The stages that ran, in their order."""
    return [stage for stage in STAGES if f"Running stage '{stage}'" in output]
