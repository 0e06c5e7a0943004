"""The reference input: what "nothing there" means to the model, as word embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from bertlift.errors import InputError

REFERENCES = ("mask", "pad", "unk", "zero", "blank_passage", "blank_question")


def reference_embeddings(model: Any, ids: Tensor, reference: str | Tensor, tokenizer: Any = None) -> Tensor:
    """Word embeddings of the reference, ``(batch, tokens, width)``; positions and segments stay the input's.

    Args:
        model: with the word embeddings.
        ids: token ids of the input, ``(batch, tokens)``.
        reference: the mask, padding or unknown token, or a zero embedding, in place of every token that is
            not special; the mask token on one side only (``blank_*``); or ids ``(batch, tokens)`` or embeddings.
        tokenizer: of the model; None: the one saved beside its weights.

    Raises:
        InputError: for another reference, another shape, or a token that the tokenizer does not have.
    """
    words: Any = model.get_input_embeddings()
    if isinstance(reference, Tensor):
        if reference.is_floating_point():
            found = reference.to(ids.device)
        elif bool((outside := (reference < 0) | (reference >= words.num_embeddings)).any()):
            raise InputError(
                f"reference has token id {reference[outside][0]}; allowed: 0 to {words.num_embeddings - 1}"
            )
        else:
            found = words(reference.to(ids.device))
        if found.shape != (*ids.shape, words.embedding_dim):
            raise InputError(
                f"reference has shape {tuple(reference.shape)}; allowed: token ids {tuple(ids.shape)} or embeddings "
                f"{(*ids.shape, words.embedding_dim)}"
            )
        return found.detach().to(words.weight.dtype)
    if reference not in REFERENCES:
        raise InputError(f"reference is {reference!r}; allowed: {', '.join(REFERENCES)}, token ids or embeddings")
    tokenizer = tokenizer or _tokenizer_of(model)
    # The unknown token is an ordinary token of the input: it is replaced, not kept.
    special = torch.tensor(sorted(set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}), device=ids.device)
    replaced = ~torch.isin(ids, special)
    if reference.startswith("blank_"):
        passage = (ids == tokenizer.sep_token_id).cumsum(-1) > 0
        replaced &= passage if reference == "blank_passage" else ~passage
    actual: Tensor = words(ids).detach()
    if reference == "zero":
        return actual.masked_fill(replaced[..., None], 0.0)
    token = "mask" if reference.startswith("blank_") else reference
    replacement = getattr(tokenizer, f"{token}_token_id")
    if replacement is None:
        raise InputError(f"reference is {reference!r}, but this tokenizer has no {token} token")
    return torch.where(replaced[..., None], words.weight.detach()[replacement], actual)


def _tokenizer_of(model: Any) -> Any:
    try:
        return AutoTokenizer.from_pretrained(model.name_or_path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no tokenizer beside the model ({model.name_or_path!r}) to tell its special tokens; give tokenizer=..., "
            f"or the reference as token ids"
        ) from error
