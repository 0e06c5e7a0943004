"""Where the scores sit, layer by layer, and what that says of the paper's claims."""

from __future__ import annotations

from bertlift.analysis.claims import CONTROLS as NAMES
from bertlift.analysis.claims import judge
from bertlift.analysis.trajectories import summary, trajectory
from bertlift.attribution import load_attributions
from bertlift.config import Config
from bertlift.files import write_json
from bertlift.stages import ATTRIBUTIONS, CONTROLS, METRICS, TRAJECTORIES, run


def claims(config: Config) -> None:
    """Write ``data/trajectories.json`` and ``reports/metrics/claims.json``."""
    seed = config.analysis.controls.seed
    attributions = load_attributions(ATTRIBUTIONS)
    dev = [trajectory(each) for each in attributions if each.split.startswith("dev")]
    shown = [each for each in attributions if each.split.endswith("showcase")]
    there = [name for name in NAMES if (CONTROLS / name).is_dir()]
    beside = {name: [trajectory(each) for each in load_attributions(CONTROLS / name)] for name in there}
    found = judge(dev, beside, seed, shown[0].question_id if shown else None)
    examples = {str(each.name): summary([trajectory(each)], seed)["all"] for each in shown}
    controls = {name: summary(each, seed)["all"] for name, each in beside.items()}
    write_json(TRAJECTORIES, {"subsets": summary(dev, seed), "controls": controls, "examples": examples})
    write_json(METRICS / "claims.json", found)
    verdicts = [each["verdict"] for each in found]
    print(", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)))


if __name__ == "__main__":
    run("claims", claims)
