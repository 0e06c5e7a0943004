"""The configuration: params.yaml is the composed default, every choice composes, what is wrong is refused in a line."""

from __future__ import annotations

import importlib

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import hydra_plugins.bertlift_config
from bertlift.config import Config, load_params, typed
from bertlift.errors import InputError
from conftest import ROOT

CHOICES = [
    (group.name, choice.stem)
    for group in sorted((ROOT / "conf").iterdir())
    if group.is_dir()
    for choice in sorted(group.glob("*.yaml"))
]
# What a choice leaves for the user to say.
NEEDED = {
    ("data", "squad_json"): ["data.train=data/corpus/train", "data.dev=data/corpus/dev"],
    ("reader", "local"): ["reader.path=data"],
}


def composed(*overrides):
    """As DVC does it for `dvc exp run -S`."""
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        config = compose("config", overrides=list(overrides))
    OmegaConf.resolve(config)
    return config


def test_params_yaml_is_the_composed_default():
    assert (ROOT / "params.yaml").read_text(encoding="utf-8") == OmegaConf.to_yaml(composed())
    assert load_params(ROOT / "params.yaml") == OmegaConf.to_object(composed())


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_composes_and_reads_back(group, choice, tmp_path):
    config = composed(f"{group}={choice}", *NEEDED.get((group, choice), []))
    (tmp_path / "params.yaml").write_text(OmegaConf.to_yaml(config), encoding="utf-8")
    assert isinstance(load_params(tmp_path / "params.yaml"), Config)


def test_the_paper_experiment_has_the_papers_settings():
    config = composed("experiment=paper")
    assert (config.data.name, config.reader.hub) == ("squad_v2", "google-bert/bert-base-uncased")
    assert (config.training.learning_rate, config.training.epochs, config.training.batch_size) == (3e-5, 2, 12)
    assert (config.reader.max_length, config.reader.doc_stride) == (384, 128)
    assert config.data.hub.squad_v2.showcase == ["56be85543aeaaa14008c9063"]


REFUSED = [
    (
        "analysis.clusters.kk=4",
        "unknown key 'analysis.clusters.kk'; allowed under 'analysis.clusters': algorithm, bootstraps, k, k_max",
    ),
    (
        "analysis.cluster.k=4",
        "unknown key 'analysis.cluster'; allowed under 'analysis': clusters, confidence, controls, faithfulness, "
        "heads, map, readers",
    ),
    ("+data.limits=4", "unknown key 'data.limits'; allowed under 'data': dev, hub, limit, name, showcase, train"),
    (
        "datas.limit=4",
        "unknown key 'datas'; allowed at the top level: analysis, attribution, data, reader, readers, report",
    ),
    (
        "report.colors.middle=red",
        "unknown key 'report.colors.middle'; allowed under 'report.colors': negative, positive",
    ),
    ("data=nowhere", "there is no 'data/nowhere'; allowed: embedded, squad_json, squad_v2"),
    ("experiment=big", "there is no 'experiment/big'; allowed: blog, blog_hub, default, methods, paper, smoke"),
    ("training.epochs=many", "training.epochs: Value 'many' of type 'str' could not be converted to Float"),
    ("reader.finetune=perhaps", "reader.finetune: Value 'perhaps' is not a valid bool"),
    ("reader.batch_size=0", "reader.batch_size is 0; allowed: 1 or more"),
    ("training.calibration=1", "training.calibration is 1.0; allowed: 0 up to, not including, 1"),
    ("+readers={a/b:{name:x,package:x}}", "readers.a/b: allowed in the name of a reader: letters, digits, '_' and '-'"),
    ("+readers={other:{name:x}}", "readers.other.path: missing; give a checkpoint directory, or readers.other.hub"),
    ("+readers={other:{name:x,package:x,layers:0}}", "readers.other.layers is 0; allowed: 1 or more"),
    ("+readers={other:{package:x,layer:1}}", "unknown key 'readers.other.layer'"),
    ("+readers={other:{name:x,path:none}}", "readers.other.path is 'none': no such directory in"),
    ("reader.finetune=true", "reader.adapter: is for a ready reader; set reader.finetune=false"),
    ("training.sentence_epochs=-1", "training.sentence_epochs is -1.0; allowed: 0 or more"),
    ("training.epochs=0", "training.epochs is 0.0; allowed: more than 0, and finite"),
    ("analysis.clusters.k_max=1", "analysis.clusters.k_max is 1; allowed: 2 or more"),
    ("training.epochs=inf", "training.epochs is inf; allowed: more than 0, and finite"),
    ("analysis.map.min_dist=inf", "analysis.map.min_dist is inf; allowed: a finite number"),
    ("data=squad_json", "data.train: missing mandatory value; give one"),
    ("reader=local", "reader.path: missing; give a checkpoint directory"),
    ("+data.hub={a:{id:b,tran:c}}", "unknown key 'data.hub.a.tran'; allowed under 'data.hub.a': dev, id, revision"),
    ("data.train=none.json", "data.train is 'none.json': no such file or directory in"),
    ("data.dev=", "data.dev is '': no such file or directory in"),
    ("data.showcase=none.json", "data.showcase is 'none.json': no such file or directory in"),
    ("reader.path=none", "reader.path is 'none': no such directory in"),
    ("reader.path=README.md", "reader.path is 'README.md': no such directory in"),
]


@pytest.mark.parametrize(("override", "said"), REFUSED)
def test_a_wrong_override_is_refused_in_one_line_with_what_is_allowed(override, said):
    with pytest.raises(Exception, match="configuration: ") as refused:
        composed(override)
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_an_adapter_of_trained_embeddings_is_refused_before_the_training():
    with pytest.raises(Exception, match="an adapter holds no embeddings"):
        composed("training=paper", "training.adapter_rank=4")


def test_the_hub_needs_no_file_before_the_download():
    assert composed("data=squad_v2").data.train == "data/hub/squad_v2/train.json"


def test_hydra_may_run_the_plugin_again():
    importlib.reload(hydra_plugins.bertlift_config)
    assert composed().data.name == "embedded"
    with pytest.raises(Exception, match="unknown key 'zz'; allowed at the top level"):
        composed("zz=1")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    k_min: 2\n", "    kmin: 2\n", "unknown key 'analysis.clusters.kmin'; allowed under 'analysis.clusters'"),
        ("  epochs: ", "  epochs: x", "training.epochs: Value 'x"),
        ("  dpi: 150\n", "  dpi: not in\n", "report.dpi: Value 'not in'"),
        ("  epochs: ", "  epochs: ??? # ", "training.epochs: missing mandatory value"),
        (
            "  map:\n",
            "  map: 5\n  other:\n",
            "analysis.map: expected a mapping, found 5; allowed keys: min_dist, neighbors",
        ),
        ("  dpi: 150\n", "  dpi: 3\n", "report.dpi is 3; allowed: 40 or more"),
        ("data:\n", "extra: 1\ndata:\n", "unknown key 'extra'; allowed at the top level"),
    ],
)
def test_a_wrong_params_yaml_is_refused_by_the_stages(tmp_path, old, new, said):
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    assert old in text
    file = tmp_path / "params.yaml"
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        load_params(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_params_yaml_that_is_missing_broken_or_no_mapping(tmp_path):
    file = tmp_path / "params.yaml"
    with pytest.raises(InputError, match=r"params\.yaml: no such file; run from the project's root"):
        load_params(file)
    file.write_text("data: [", encoding="utf-8")
    with pytest.raises(InputError, match=r"params\.yaml: not valid YAML") as refused:
        load_params(file)
    assert len(str(refused.value).splitlines()) == 1
    file.write_text("- 1\n", encoding="utf-8")
    with pytest.raises(InputError, match="expected a mapping of settings, found a list"):
        load_params(file)


def test_a_value_that_is_missing_is_named():
    with pytest.raises(InputError, match=r"here: data\.name"):
        typed({}, "here")
