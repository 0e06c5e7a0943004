"""The one door to the Hugging Face hub: a snapshot of a repository, and the commit that it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from bertlift.errors import InputError


def snapshot(repo_id: str, revision: str, kind: str, patterns: Sequence[str]) -> tuple[Path, str]:
    """Download the files of a hub repository that match ``patterns`` (or take them from the local cache).

    Args:
        repo_id: ``owner/name``.
        revision: a commit hash, branch or tag.
        kind: ``model`` or ``dataset``.
        patterns: shell patterns; files of other kinds (pickles, code) are never fetched.

    Returns:
        The local directory and the commit hash that ``revision`` resolved to.

    Raises:
        InputError: if there is no such repository or revision, or the hub cannot be reached and the
            snapshot is not in the local cache.
    """
    what = f"hub {kind} {repo_id!r} at revision {revision!r}"
    try:
        path = Path(snapshot_download(repo_id, revision=revision, repo_type=kind, allow_patterns=list(patterns)))
    except HFValidationError as error:
        raise InputError(f"{what}: not a repository id; allowed: owner/name") from error
    except GatedRepoError as error:
        raise InputError(f"{what}: access is restricted; ask for it there and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise InputError(f"{what}: no such {kind} on {HfApi().endpoint}; check the id") from error
    except RevisionNotFoundError as error:
        raise InputError(f"{what}: no such revision; give a branch, a tag or a commit hash") from error
    except Exception as error:  # offline, refused, timed out, proxies, ...: each has an exception of its own
        if isinstance(error, OSError) and error.errno is not None:  # the disk's fault, not the hub's
            raise InputError(
                f"{what}: cannot be written to the local cache: {error.strerror}: {error.filename}; "
                f"set HF_HOME to a directory that can be written and has room"
            ) from error
        raise InputError(
            f"{what}: not in the local cache, and the hub cannot be reached; unset HF_HUB_OFFLINE and connect, "
            f"set HF_ENDPOINT to a mirror, or use local files (reader.path=DIR, data=squad_json)"
        ) from error
    return path, path.name
