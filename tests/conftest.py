"""Shared fixtures: a tiny BERT checkpoint with a real WordPiece tokenizer, and questions over small passages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForQuestionAnswering, BertModel, PreTrainedTokenizerFast

from bertlift.squad.schema import Answer, Question

# A busy machine is no fault; and what is tried in CI is the same each time, so that a failure there repeats.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if "CI" in os.environ else "local")

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared" / "data"  # real SQuAD 2.0 data; never needed, used when present

PASSAGES = {
    "Rivers": "The Danube flows through ten countries, and it ends in the Black Sea. In 1856 a commission was formed.",
    "Bread": "Bakers knead the dough for ten minutes. Yeast makes it rise, and salt slows the yeast down again.",
    "Kites": "A kite needs wind. In June 1752 Franklin flew a silk kite near Philadelphia to study lightning.",
}
ASKED = [
    ("Rivers", "Where does the Danube end?", "the Black Sea"),
    ("Rivers", "When was a commission formed?", "1856"),
    ("Rivers", "Who led the commission?", None),
    ("Bread", "What makes dough rise?", "Yeast"),
    ("Bread", "Why is sugar added?", None),
    ("Kites", "Who flew a kite near Philadelphia?", "Franklin"),
    ("Kites", "What was the kite made of?", "silk"),
]


def make_question(title: str, text: str, answer: str | None, identity: str | None = None) -> Question:
    context = PASSAGES[title]
    answers = () if answer is None else (Answer(answer, context.index(answer)),)
    return Question(identity or f"{title}-{text[:12]}", text, context, title, answers)


@pytest.fixture
def questions() -> list[Question]:
    return [make_question(*each) for each in ASKED]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Lower-cased WordPiece over the letters and the test's own words; 'flows' falls into 'flow' + '##s'."""
    words = " ".join([*PASSAGES.values(), *(text for _, text, _ in ASKED)]).lower()
    for mark in ".,?":
        words = words.replace(mark, " ")
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + list("0123456789")
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *".,?'-$<>&",
        *letters,
        *[f"##{each}" for each in letters],
    ]
    vocabulary += sorted({word for word in words.split() if word != "flows"} | {"flow"} - set(vocabulary))
    vocabulary = list(dict.fromkeys(vocabulary))
    tokens = Tokenizer(models.WordPiece({word: index for index, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokens.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokens.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokens.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def tiny_config(vocabulary: int, **changes: object) -> BertConfig:
    values: dict[str, object] = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 128,
    }
    return BertConfig(**(values | changes))


@pytest.fixture(scope="session")
def tiny_reader(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    """A checkpoint directory of a random tiny BERT with a QA head."""
    directory = tmp_path_factory.mktemp("tiny-reader")
    torch.manual_seed(0)
    BertForQuestionAnswering(tiny_config(len(tokenizer))).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    """The same without a head."""
    directory = tmp_path_factory.mktemp("tiny-encoder")
    torch.manual_seed(0)
    BertModel(tiny_config(len(tokenizer))).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
