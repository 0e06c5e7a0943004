"""Small random models of every family of encoders that the engine is tested on."""

from __future__ import annotations

from functools import lru_cache

import torch
import transformers

VOCABULARY = 40
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_V2 = _RELATIVE | {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
_MOBILE = {"embedding_size": 16, "intra_bottleneck_size": 8, "num_feedforward_networks": 2}

# name -> (class prefix, attention implementations, changes of the configuration, whether heads can be told apart)
FAMILIES = {
    "bert": ("Bert", ("eager", "sdpa"), {}, True),
    "distilbert": ("DistilBert", ("eager", "sdpa"), {}, True),
    "roberta": ("Roberta", ("eager", "sdpa"), {}, True),
    "camembert": ("Camembert", ("eager", "sdpa"), {}, True),
    "xlm-roberta": ("XLMRoberta", ("eager", "sdpa"), {}, True),
    "electra": ("Electra", ("eager", "sdpa"), {"embedding_size": 8}, True),
    "albert": ("Albert", ("eager", "sdpa"), {"embedding_size": 8}, True),
    "mpnet": ("MPNet", ("eager",), {}, True),
    "deberta-v2": ("DebertaV2", ("eager",), _V2, True),
    # A convolution goes past the first layer.
    "deberta-v2-conv": ("DebertaV2", ("eager",), _V2 | {"conv_kernel_size": 3, "conv_act": "gelu"}, False),
    # Its layers have bottlenecks beside the attention.
    "mobilebert": ("MobileBert", ("eager", "sdpa"), _MOBILE, False),
}


@lru_cache(maxsize=64)
def cached(*args, **kwargs):
    """The same, not to be changed, built once."""
    return build(*args, **kwargs)


def build(family, task="QuestionAnswering", seed=0, implementation="eager", dtype=torch.float64, scale=1.0, **changes):
    """A model in evaluation mode whose matrices are ``scale`` times their usual size."""
    prefix, _, own, _ = FAMILIES[family]
    config = getattr(transformers, f"{prefix}Config")(**(_SIZES | own | changes))
    for name in ("bos", "eos", "cls", "sep"):  # of a vocabulary that is not ours
        setattr(config, f"{name}_token_id", 2 if name in ("bos", "cls") else 3)
    torch.manual_seed(seed)
    model = getattr(transformers, f"AutoModelFor{task}").from_config(config, attn_implementation=implementation)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model.to(dtype).eval()
