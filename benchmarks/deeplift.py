"""What exact DeepLIFT costs, on a random model of BERT-base's shape: one JSON object on standard output.

Every timing is a ratio within this run: of medians of alternating repetitions, with a fixed number of threads.
Peak memory is that of a process of its own for each. The comparisons with Captum, SHAP and LXT are made where
these can be imported, else they are null. LXT 2.1 needs an older transformers (4.52 serves) in an environment of
its own; the engine runs there too (``PYTHONPATH=src``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForQuestionAnswering

from bertlift import deeplift

IG_STEPS = 50
MEASURED = (3, 9)  # of the layers, where a method takes one layer a call; scaled to all of them


class Case:
    """A model, a padded batch of random tokens and a span."""

    def __init__(self, tokens: int, rows: int, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.model = BertForQuestionAnswering(BertConfig()).eval().to(dtype)
        ids = torch.randint(1000, 30000, (rows, tokens))
        ids[:, 0], ids[:, 12], ids[:, -1] = 101, 102, 102
        self.inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        self.reference = torch.where((ids == 101) | (ids == 102), ids, 103)
        self.start, self.end = tokens // 2, tokens // 2 + 2

    def target(self, output: Any) -> torch.Tensor:
        """Start + end logit, ``(batch,)``."""
        total: torch.Tensor = output.start_logits[:, self.start] + output.end_logits[:, self.end]
        return total

    def backward(self) -> None:
        """Plain forward and backward pass: the gradients of all layers' hidden states."""
        output = self.model(**self.inputs, output_hidden_states=True)
        torch.autograd.grad(self.target(output).sum(), output.hidden_states)

    def deeplift(self) -> Any:
        """Ours, all layers."""
        return deeplift(self.model, self.inputs, self.reference, (self.start, self.end))

    def layer_ig(self, layer: int) -> Any:
        """Captum's integrated gradients of one layer's output, and the delta by its own account."""
        from captum.attr import LayerIntegratedGradients

        def forward(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.target(self.model(input_ids=ids, attention_mask=mask))

        return LayerIntegratedGradients(forward, self.model.bert.encoder.layer[layer]).attribute(
            self.inputs["input_ids"],
            self.reference,
            additional_forward_args=(self.inputs["attention_mask"],),
            n_steps=IG_STEPS,
            internal_batch_size=len(self.reference),
            return_convergence_delta=True,
        )

    def captum_deeplift(self, layer: int) -> Any:
        """Captum's DeepLIFT of one layer's output, and the delta by its own account."""
        from captum.attr import LayerDeepLift

        with warnings.catch_warnings(action="ignore"):  # on its hooks
            return LayerDeepLift(Scored(self, "input_ids"), self.model.bert.encoder.layer[layer]).attribute(
                self.inputs["input_ids"],
                self.reference,
                return_convergence_delta=True,
            )

    def lxt(self) -> Callable[[], list[torch.Tensor]]:
        """LXT's relevance (AttnLRP) of all layers, as a function; its patches of torch are in force only within."""
        from lxt.efficient.models import bert

        patched = bert.BertForQuestionAnswering(self.model.config).eval()
        patched.load_state_dict(self.model.state_dict())
        kinds = (torch.nn.LayerNorm, torch.nn.Dropout)
        plain = [kind.forward for kind in kinds]
        for kind in kinds:
            bert.attnLRP[kind](kind)
        theirs = [kind.forward for kind in kinds]

        def put(forwards: list[Any]) -> None:
            for kind, forward in zip(kinds, forwards, strict=True):
                kind.forward = forward

        def relevance() -> list[torch.Tensor]:
            put(theirs)
            try:
                output = patched(**self.inputs, output_hidden_states=True)
                gradients = torch.autograd.grad(self.target(output).sum(), output.hidden_states)
                return [(h * g).detach().sum(-1) for h, g in zip(output.hidden_states, gradients, strict=True)]
            finally:
                put(plain)

        put(plain)
        return relevance


class Scored(torch.nn.Module):
    """A case's target as a module from ids or embeddings to ``(batch, 1)``, as Captum's and SHAP's DeepLIFT ask for."""

    def __init__(self, case: Case, argument: str) -> None:
        super().__init__()
        self.model, self.argument = case.model, argument
        self.target, self.mask = case.target, case.inputs["attention_mask"][:1]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The target's value for ids or embeddings of the case's length."""
        mask = self.mask.expand(len(inputs), -1)
        return self.target(self.model(**{self.argument: inputs}, attention_mask=mask))[:, None]


def ratio(one: Callable[[], Any], other: Callable[[], Any], repetitions: int) -> float:
    """Median time of ``one`` over that of ``other``, taken in turns after a warm-up of each."""
    times: list[list[float]] = [[], []]
    for repetition in range(repetitions + 1):
        for number, call in enumerate((one, other)):
            begin = time.perf_counter()
            call()
            if repetition:
                times[number].append(time.perf_counter() - begin)
    return statistics.median(times[0]) / statistics.median(times[1])


def peak(what: str) -> float:
    """Peak resident memory in MiB of a fresh process that only runs ``what`` at 512 tokens (Linux)."""
    done = subprocess.run([sys.executable, __file__, "--peak", what], capture_output=True, text=True, check=True)
    return float(done.stdout)


def relative_delta(dtype: torch.dtype) -> float:
    """The largest relative delta of any layer, at 128 x 4."""
    found = Case(128, 4, dtype).deeplift()
    return float((found.delta.abs() / (found.target_value - found.reference_value).abs()[:, None]).max())


def beside_captum(repetitions: int) -> dict[str, Any]:
    """How much longer Captum takes for all layers, and what its sums miss, both at 128 x 1 and by ``MEASURED``."""
    import captum

    case = Case(128, 1)
    layers = case.model.config.num_hidden_layers
    found: dict[str, Any] = {
        "captum": captum.__version__,
        "captum_tokens": "128x1",
        "captum_layers_measured": len(MEASURED),
        "captum_layers_scaled_to": layers,
        "captum_layer_ig_steps": IG_STEPS,
    }
    ours = case.deeplift()
    difference = float((ours.target_value - ours.reference_value).abs())
    for name, method in (("layer_ig", case.layer_ig), ("deeplift", case.captum_deeplift)):
        times = [ratio(lambda at=at, of=method: of(at), case.deeplift, repetitions) for at in MEASURED]
        found[f"vs_captum_{name}"] = statistics.mean(times) * layers
        missed = [float(method(at)[1].abs().max()) / difference for at in MEASURED]
        found[f"captum_{name}_relative_delta"] = max(missed)
        print(f"captum {name}: {found}", file=sys.stderr)
    return found


def beside_shap(repetitions: int) -> dict[str, Any]:
    """What the sums of SHAP's DeepExplainer miss at 128 x 1, with its own check of them switched off."""
    import shap

    case = Case(128, 1)
    scored, words = Scored(case, "inputs_embeds"), case.model.get_input_embeddings()
    actual, reference = words(case.inputs["input_ids"]).detach(), words(case.reference).detach()
    with warnings.catch_warnings(action="ignore"):  # on the modules that it does not know
        scores = shap.DeepExplainer(scored, reference).shap_values(actual, check_additivity=False)
    with torch.no_grad():
        difference = float((scored(actual) - scored(reference)).sum())
    return {"shap": shap.__version__, "shap_deep_relative_delta": abs(float(scores.sum()) / difference - 1)}


def beside_lxt(repetitions: int) -> dict[str, Any]:
    """How much longer than LXT we take for all layers (128 x 4), and how far its relevance is from summing to f(x)."""
    from importlib.metadata import version

    case = Case(128, 4)
    relevance = case.lxt()
    value = case.deeplift().target_value
    missed = max(float(((layer.sum(-1) - value) / value).abs().max()) for layer in relevance())
    return {
        "lxt": version("lxt"),
        "lxt_transformers": version("transformers"),
        "vs_lxt": ratio(case.deeplift, relevance, repetitions),
        "lxt_relative_delta": missed,  # LRP has no reference: its sum should be f(x)
    }


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--peak", choices=("backward", "deeplift"), help="run this once and print the peak memory")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        getattr(Case(512, 1), options.peak)()
        # Not getrusage: its maximum is inherited from the process that started this one.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        print(int(status.split("VmHWM:")[1].split()[0]) / 1024)
        return
    result: dict[str, Any] = {"threads": options.threads, "repetitions": options.repetitions, "vs_backward": {}}
    for tokens, rows in ((128, 4), (512, 1)):
        case = Case(tokens, rows)
        result["vs_backward"][f"{tokens}x{rows}"] = ratio(case.deeplift, case.backward, options.repetitions)
        print(f"vs_backward {tokens} x {rows}: {result['vs_backward']}", file=sys.stderr)
    result["peak_memory_vs_backward"] = peak("deeplift") / peak("backward")
    result["max_relative_delta"] = {
        "float32": relative_delta(torch.float32),
        "float64": relative_delta(torch.float64),
    }
    for name, compare in (("captum", beside_captum), ("shap", beside_shap), ("lxt", beside_lxt)):
        result |= compare(options.repetitions) if find_spec(name) else {name: None}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
