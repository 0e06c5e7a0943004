"""The reference input: what "nothing there" means to the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bertlift.errors import InputError

TOKEN_REFERENCES = ("mask", "pad", "unk")


def reference_ids(input_ids: Tensor, tokenizer: Any, reference: str) -> Tensor:
    """Token ids of the reference: special tokens as they are, every other token replaced by one.

    Positions, segments and length stay those of the input.

    Args:
        input_ids: ``(batch, tokens)``.
        tokenizer: of the model; tells which tokens are special and which one replaces the others.
        reference: ``"mask"``, ``"pad"`` or ``"unk"``.

    Raises:
        InputError: for another reference, or one whose token the tokenizer does not have.
    """
    if reference not in TOKEN_REFERENCES:
        raise InputError(f"attribution.reference is {reference!r}; allowed: {', '.join(TOKEN_REFERENCES)}")
    replacement = getattr(tokenizer, f"{reference}_token_id")
    if replacement is None:
        raise InputError(f"attribution.reference is {reference!r}, but this tokenizer has no such token")
    # The unknown token is an ordinary token of the input: it is replaced, not kept.
    kept = torch.tensor(sorted(set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}), device=input_ids.device)
    return torch.where(torch.isin(input_ids, kept), input_ids, replacement)
