"""What exact DeepLIFT costs, on a random model of BERT-base's shape: one JSON object on standard output.

Every timing is a ratio within this run: of medians of alternating repetitions, with a fixed number of threads.
Peak memory is that of a process of its own for each. Needs ``pip install captum`` for the comparison with Captum.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForQuestionAnswering

from bertlift import deeplift

IG_STEPS = 50
IG_LAYERS = (3, 9)  # layer 0 is the first encoder layer


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

    def layer_ig(self, layer: int) -> None:
        """Captum's layer integrated gradients of one layer's output."""
        from captum.attr import LayerIntegratedGradients

        def forward(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.target(self.model(input_ids=ids, attention_mask=mask))

        method = LayerIntegratedGradients(forward, self.model.bert.encoder.layer[layer])
        rows = len(self.reference)
        method.attribute(
            self.inputs["input_ids"],
            self.reference,
            additional_forward_args=(self.inputs["attention_mask"],),
            n_steps=IG_STEPS,
            internal_batch_size=rows,
        )


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
    try:
        import captum
    except ImportError:
        result["vs_captum_layer_ig"] = None
    else:
        case = Case(128, 1)
        layers = case.model.config.num_hidden_layers
        each = [ratio(lambda layer=layer: case.layer_ig(layer), case.deeplift, 1) for layer in IG_LAYERS]
        result["vs_captum_layer_ig"] = statistics.mean(each) * layers
        result["captum"] = {
            "version": captum.__version__,
            "steps": IG_STEPS,
            "layers_measured": len(IG_LAYERS),
            "layers_scaled_to": layers,
            "tokens": "128x1",
            "repetitions": 1,
        }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
