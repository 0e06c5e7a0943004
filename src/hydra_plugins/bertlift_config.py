"""Hydra finds this module by itself in every process that composes ``conf/``: ours and DVC's.

It registers the typed schema, and lets a refused override end in one line that names the keys that
are allowed; Hydra itself says only which key is unknown.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.errors import ConfigCompositionException, MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bertlift.config import UNKNOWN_KEY, Config, check_files, typed, unknown_key
from bertlift.errors import InputError


class BertliftConfig(SearchPathPlugin):
    """Being a plugin is what has Hydra import this module; the search path needs no change."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Leave the search path as it is."""


def _refusal(message: str) -> Exception:
    """An error that Hydra and, in DVC's process, DVC print as one line.

    It is raised from None: DVC would print the causes too.
    """
    bases: tuple[type, ...] = (ConfigCompositionException,)
    if "dvc.exceptions" in sys.modules:
        bases += (sys.modules["dvc.exceptions"].DvcException,)
    return type("ConfigRefused", bases, {})(message)  # type: ignore[no-any-return]


# Hydra may run this module twice: what is wrapped must be Hydra's own function, never our wrapper.
_load_configuration = getattr(ConfigLoaderImpl.load_configuration, "wrapped", ConfigLoaderImpl.load_configuration)


def _explained(self: ConfigLoaderImpl, *args: Any, **kwargs: Any) -> Any:
    """``load_configuration`` that explains what it refuses, and checks ranges and files as well as types."""
    try:
        composed = _load_configuration(self, *args, **kwargs)
    except MissingConfigException as error:
        if not error.options:
            raise
        choices = ", ".join(error.options)
        raise _refusal(f"configuration: there is no '{error.missing_cfg_file}'; allowed: {choices}") from None
    except ConfigCompositionException as error:
        cause = error.__cause__
        if not isinstance(cause, OmegaConfBaseException) or not cause.full_key:
            raise
        if isinstance(cause, UNKNOWN_KEY):
            raise _refusal(unknown_key(str(cause.full_key), "configuration")) from None
        raise _refusal(f"configuration: {cause.full_key}: {str(cause.msg).splitlines()[0]}") from None
    if OmegaConf.get_type(composed) is Config:
        plain = OmegaConf.to_container(composed)
        assert isinstance(plain, dict)
        plain.pop("hydra", None)
        try:
            config = typed(plain, "configuration")
            for element in self.config_search_path.get_path():
                folder = str(element.path).removeprefix("file://")
                # conf/ itself, not a package; the project is its parent.
                if element.provider in ("main", "command-line") and "://" not in folder:
                    check_files(config, Path(folder).parent, "configuration")
        except InputError as error:
            raise _refusal(str(error)) from None
    return composed


ConfigStore.instance().store(name="schema", node=Config)
_explained.wrapped = _load_configuration  # type: ignore[attr-defined]
ConfigLoaderImpl.load_configuration = _explained  # type: ignore[method-assign]
