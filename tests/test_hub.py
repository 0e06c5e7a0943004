"""Readers and data sets from a hub: what is fetched, what is recorded, what is said when it cannot be had.

The hub's library reads its environment when it is imported, so the code under test runs in processes of its own.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertlift.squad.schema import write_squad
from conftest import ROOT
from hub_server import COMMIT, serving

NOWHERE = "http://127.0.0.1:9"  # nothing listens there
SAFE = ("*.safetensors", "*.json")


def table(rows):
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream)
    return stream.getvalue()


def parquet(rows):
    return table(
        [
            {
                "id": identity,
                "title": title,
                "context": "The Danube ends in the Black Sea.",
                "question": "Where does it end?",
                "answers": {"text": texts, "answer_start": [19 for _ in texts]},
            }
            for identity, title, texts in rows
        ]
    )


@pytest.fixture
def hub(tiny_reader):
    files = {path.name: path.read_bytes() for path in tiny_reader.iterdir()}
    # Each with bytes of its own: of equal files the hub's library fetches one.
    names = ("pytorch_model.bin", "modeling_evil.py", "tokenizer_evil.py", "tokenizer.bin", "vocab.pkl")
    dangerous = {name: name.encode() for name in names}
    squad = {
        "README.md": b"squad",
        "squad_v2/train-00000-of-00001.parquet": parquet([("t1", "Rivers", ["the Black Sea"]), ("t2", "Rivers", [])]),
        "squad_v2/validation-00000-of-00001.parquet": parquet([("v1", "Seas", ["the Black Sea"])]),
        "squad.py": b"import os",
    }
    sharded = {
        "train-00001-of-00002.parquet": parquet([("b", "B", [])]),
        "train-00000-of-00002.parquet": parquet([("a", "A", [])]),
        "validation-00000-of-00001.parquet": table([{"id": "v", "title": "V", "context": "c", "question": "q"}]),
    }
    repositories = {
        "models/us/reader": files | dangerous,
        "models/us/gated": files,
        "models/us/pickle": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
        "datasets/us/squad": squad,
        "datasets/us/sharded": sharded,
        "datasets/us/text": {"train.csv": b"id,title"},
        "datasets/us/two": {f"{name}/train-0.parquet": parquet([(name, name, [])]) for name in ("de", "en")},
    }
    with serving(repositories) as running:
        running.gated.add("models/us/gated")
        yield running


def run(code, tmp_path, address, **environment):
    """Run code in a process of its own; what it puts into ``said`` comes back."""
    script = (
        "import json, sys\nfrom pathlib import Path\nfrom bertlift.errors import InputError\n"
        "from bertlift.hub import snapshot\nsaid = []\n"
        "def refused(what, *args, **kwargs):\n"
        "    try:\n        what(*args, **kwargs)\n"
        "    except InputError as error:\n        said.append(str(error))\n"
        "    else:\n        said.append('was not refused')\n"
        f"{textwrap.dedent(code)}\nprint('\\n' + json.dumps(said))\n"
    )
    # No proxy may stand between this process and the server beside it.
    clean = {
        key: value for key, value in os.environ.items() if "proxy" not in key.lower() and not key.startswith("HF_")
    }
    settings = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    # A busy machine is no reason to give up.
    settings |= {"HF_HUB_ETAG_TIMEOUT": "100", "HF_HUB_DOWNLOAD_TIMEOUT": "100"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=clean | settings | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_snapshot_holds_the_asked_files_only_tells_its_commit_and_stays_for_offline_use(hub, tmp_path):
    code = f"""
        path, commit = snapshot("us/reader", "main", "model", {SAFE})
        said += [commit, sorted(file.name for file in path.iterdir())]
    """
    commit, files = run(code, tmp_path, hub.address)
    assert commit == COMMIT
    assert "model.safetensors" in files
    assert not {"pytorch_model.bin", "modeling_evil.py"} & {*files, *hub.fetched}
    fetched = list(hub.fetched)
    assert run(code, tmp_path, hub.address, HF_HUB_OFFLINE="1") == [commit, files]
    assert run(code, tmp_path, NOWHERE) == [commit, files]
    assert run(code.replace("main", COMMIT), tmp_path, hub.address) == [commit, files]
    assert hub.fetched == fetched


def test_what_cannot_be_had_is_said_in_one_line(hub, tmp_path):
    code = f"""
        refused(snapshot, "us/nothing", "main", "model", {SAFE})
        refused(snapshot, "us/reader", "v9", "model", {SAFE})
        refused(snapshot, "not an id", "main", "model", {SAFE})
        refused(snapshot, "us/gated", "main", "model", {SAFE})
        refused(snapshot, "us/reader", "{"f" * 40}", "model", {SAFE})
        refused(snapshot, "us/reader", "main", "dataset", {SAFE})
    """
    nothing, revision, identity, gated, commit, kind = run(code, tmp_path, hub.address)
    assert nothing == f"hub model 'us/nothing' at revision 'main': no such model on {hub.address}; check the id"
    assert revision == "hub model 'us/reader' at revision 'v9': no such revision; give a branch, a tag or a commit hash"
    assert identity == "hub model 'not an id' at revision 'main': not a repository id; allowed: owner/name"
    assert gated == "hub model 'us/gated' at revision 'main': access is restricted; ask for it there and set HF_TOKEN"
    assert commit == revision.replace("v9", "f" * 40)
    assert kind == f"hub dataset 'us/reader' at revision 'main': no such dataset on {hub.address}; check the id"


@pytest.mark.parametrize("offline", [{"HF_HUB_OFFLINE": "1"}, {}])
def test_without_a_hub_it_says_what_to_set(tmp_path, offline):
    (said,) = run(f'refused(snapshot, "us/reader", "main", "model", {SAFE})', tmp_path, NOWHERE, **offline)
    assert said.startswith(
        "hub model 'us/reader' at revision 'main': not in the local cache, and the hub cannot be reached"
    )
    for what in ("unset HF_HUB_OFFLINE", "HF_ENDPOINT", "reader.path=DIR", "data=squad_json"):
        assert what in said
    assert len(said.splitlines()) == 1


def test_a_snapshot_that_is_there_is_enough_when_the_hub_is_gone_but_half_of_one_is_not(hub, tmp_path):
    ask = 'said.append(snapshot("us/reader", "main", "model", ("config.json",))[1])'
    assert run(ask, tmp_path, hub.address) == [COMMIT]
    more = f'{ask}\nrefused(snapshot, "us/reader", "main", "model", ("*.json", "*.safetensors"))'
    commit, said = run(more, tmp_path, NOWHERE)
    assert commit == COMMIT
    assert said.startswith("hub model 'us/reader' at revision 'main': not in the local cache")


def test_a_cache_that_cannot_be_written_is_not_blamed_on_the_hub(hub, tmp_path):
    (tmp_path / "hf").write_text("a file where the cache's directory should be")
    (said,) = run('refused(snapshot, "us/reader", "main", "model", ("*.json",))', tmp_path, hub.address)
    assert "cannot be reached" not in said
    assert "HF_HOME" in said
    assert len(said.splitlines()) == 1


def test_a_hub_reader_is_loaded_with_its_commit_and_a_pickle_is_refused(hub, tmp_path):
    code = """
        from bertlift.config import Reader
        from bertlift.reader.load import find, load_model
        source = find(Reader(name="x", hub="us/reader", package="no-such-package"))
        model, tokenizer = load_model(source.directory, new_head=False)
        said += [source.origin, source.commit, type(model).__name__]
        refused(find, Reader(name="x", hub="us/pickle"))
    """
    origin, commit, name, pickle = run(code, tmp_path, hub.address)
    assert (origin, commit, name) == ("hub us/reader", COMMIT, "BertForQuestionAnswering")
    assert pickle.startswith(
        f"reader: hub model 'us/pickle' at {COMMIT} has no *.safetensors; pickled weights are never"
    )
    assert len(pickle.splitlines()) == 1
    # Twice a configuration; of the reader also its weights and its tokenizer. No pickle, no code.
    assert sorted(hub.fetched) == [
        "config.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_readers_of_the_hub_are_compared(hub, tmp_path, questions):
    for name, some in (("train", questions), ("dev", questions[3:]), ("showcase", questions[:3])):
        write_squad(tmp_path / f"data/prepared/{name}.json", some)
    code = f"""
        from dataclasses import replace
        from bertlift.config import Reader, load_params
        from bertlift.stages.finetune import train_reader
        from bertlift.stages.readers import readers
        config = load_params({str(ROOT / "params.yaml")!r})
        config.reader = Reader(name="own", hub="us/reader", finetune=False, max_length=64, doc_stride=16)
        config.readers["other"] = replace(config.reader, answerable_only=True, layers=2)
        train_reader(config)
        train_reader(config, "other")
        readers(config)
        said += json.loads(Path("reports/metrics/readers.json").read_text())
    """
    own, other = run(code, tmp_path, hub.address)
    assert [each["reader"] for each in (own, other)] == ["own", "other"]
    assert [each["layers"] for each in (own, other)] == [3, 2]
    assert [each["always_answers"] for each in (own, other)] == [False, True]
    assert own["parameters"] - other["parameters"] == 4 * (32 * 32 + 32) + 2 * 32 * 48 + 48 + 32 + 4 * 32  # a layer
    for row in (own, other):
        assert row["commit"] == COMMIT
        assert row["exact"] <= row["correct"] <= row["questions"] == 3
        assert row["answered"] == sum(each["answer"] != "" for each in row["answers"].values())
        assert row["dev"]["total"] == len(questions) - 3
        assert row["megabytes"] == pytest.approx(4 * row["parameters"] / 1e6, abs=0.06)
        assert 0 <= row["explanations"]["beats_random"]["mean"] <= 1
    assert other["answered"] == 3
    assert (tmp_path / "data/readings/1").is_dir()


def test_a_hub_data_set_becomes_squad_files_with_their_commit(hub, tmp_path):
    code = f"""
        from bertlift.config import HubData, load_params
        from bertlift.stages.download import download
        config = load_params({str(ROOT / "params.yaml")!r})
        config.data.hub["ours"] = HubData("us/squad", showcase=["t1"])
        download(config, "ours")
        config.data.hub["none"] = HubData("us/squad", showcase=["t9"])
        refused(download, config, "none")
        config.data.hub["split"] = HubData("us/squad", train="training")
        refused(download, config, "split")
        config.data.hub["text"] = HubData("us/text")
        refused(download, config, "text")
        config.data.hub["two"] = HubData("us/two")
        refused(download, config, "two")
        config.data.hub["short"] = HubData("us/sharded")
        refused(download, config, "short")
        from bertlift.stages.download import read_splits
        train, dev, _ = read_splits(HubData("us/sharded", dev="train"))
        said += [[q.id for q in train], [q.id for q in dev]]
    """
    missing, split, text, two, short, *shards = run(code, tmp_path, hub.address)
    assert missing == "data.hub.none.showcase: no question t9 in 'us/squad'"
    assert split == "hub dataset 'us/squad' has no split 'training' as parquet; it has: train, validation"
    assert text == "hub dataset 'us/text' has no split 'train' as parquet; it has: none"
    assert two == "hub dataset 'us/two' has split 'train' in several configurations: de, en; allowed: one"
    assert short.startswith("hub dataset 'us/sharded', split 'validation': not in SQuAD's layout (id, title, context,")
    assert "'answers'" in short
    assert shards == [["a", "b"], ["a", "b"]]
    from bertlift.squad.schema import read_squad

    made = tmp_path / "data/hub/ours"
    assert [(q.id, q.golds) for q in read_squad(made / "train.json")] == [("t1", ["the Black Sea"]), ("t2", [])]
    assert [q.id for q in read_squad(made / "dev.json")] == ["v1"]
    assert [q.id for q in read_squad(made / "showcase.json")] == ["t1"]
    source = json.loads((made / "source.json").read_text(encoding="utf-8"))
    assert source == {"id": "us/squad", "revision": "main", "commit": COMMIT}
    assert not (tmp_path / "data/hub/none").exists()
    kinds = ("squad", "sharded", "two")
    wanted = [name for kind in kinds for name in hub.repositories[f"datasets/us/{kind}"] if name.endswith(".parquet")]
    assert sorted(hub.fetched) == sorted(wanted)
