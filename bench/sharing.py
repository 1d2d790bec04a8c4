"""How much memory forks save: parallel sampling and beam search on a real model.

    python bench/sharing.py [--model smollm2-135m] [--widths 2,4,6] [--requests 32] [--traffic alpaca,sharegpt] [--json OUT]

The saving is (blocks saved by sharing) / (blocks that there would be without it), averaged over the steps of the run: the unit of
Figure 15
in Kwon et al., PagedAttention, SOSP 2023.  Lengths are lognormal with the means of the paper's two datasets (section 6.1: Alpaca
19.31 in,
58.45 out; ShareGPT 161.31 in, 337.99 out) and sigma 1, the same for every width; prompts are the texts of Python's own help topics.
The prefix cache is off, so that nothing but forks shares; EOS is ignored, so that lengths are as drawn.
"""

import argparse
import itertools
import json
import math
import random
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from octavo import LLM, BeamSearchParams, SamplingParams
from octavo.cli.table import table

# Means in tokens, and what the paper reports for widths 2, 4, 6 (its labels for Alpaca, its ranges for ShareGPT), in percent.
TRAFFIC = {"alpaca": (19.31, 58.45), "sharegpt": (161.31, 337.99)}
PUBLISHED = {
    ("alpaca", "parallel"): {2: "6.09", 4: "8.53", 6: "9.79"},
    ("alpaca", "beam"): {2: "37.56", 4: "53.13", 6: "55.16"},
    ("sharegpt", "parallel"): {2: "16.2", 6: "30.5"},
    ("sharegpt", "beam"): {2: "44.3", 6: "66.3"},
}
SIGMA = 1.0
LONGEST = 1024  # of prompt and of output, in tokens
COLUMNS = {
    "traffic": "lengths",
    "kind": "kind",
    "width": "outputs or beams",
    "saving": "saved %|.1f",
    "published": "paper, OPT-13B, %",
    "copies": "blocks copied a step|.2f",
}


def lengths(traffic: str, count: int) -> list[tuple[int, int]]:
    """(prompt, output) tokens of `count` requests, the same in every call."""
    draws = random.Random(traffic)
    means = TRAFFIC[traffic]

    def draw(mean: float) -> int:
        return min(LONGEST, max(2, round(draws.lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA))))

    return [(draw(means[0]), draw(means[1])) for _ in range(count)]


def measure(llm: LLM, traffic: str, kind: str, width: int, count: int, text: list[int]) -> dict[str, Any]:
    """One run; the saving is of this run alone."""
    before = llm.stats()
    prompts, params = [], []
    place = 0
    for prompt_len, output_len in lengths(traffic, count):
        prompts.append(text[place : place + prompt_len])
        place += prompt_len
        if kind == "beam":
            params.append(BeamSearchParams(beam_width=width, max_tokens=output_len, ignore_eos=True))
        else:
            params.append(SamplingParams(n=width, max_tokens=output_len, ignore_eos=True, seed=width))
    run = llm.beam_search if kind == "beam" else llm.generate
    run(prompts, params, use_tqdm=True)
    after = llm.stats()
    steps = after.sharing_steps - before.sharing_steps
    saving = (after.sharing_mean * after.sharing_steps - before.sharing_mean * before.sharing_steps) / steps
    return {
        "traffic": traffic,
        "kind": kind,
        "width": width,
        "saving": 100 * saving,
        "published": PUBLISHED[traffic, kind].get(width, "-"),
        "copies": (after.blocks_copied - before.blocks_copied) / steps,
        "steps": steps,
    }


def main() -> None:
    """Run every combination, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--widths", default="2,4,6")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--traffic", default="alpaca,sharegpt")
    parser.add_argument("--kinds", default="parallel,beam")
    parser.add_argument("--threads", type=int, help="of the kernels; the saving doesn't depend on it")
    parser.add_argument("--json", metavar="OUT")
    arguments = parser.parse_args()
    traffics, kinds, widths = arguments.traffic.split(","), arguments.kinds.split(","), [int(n) for n in arguments.widths.split(",")]
    with LLM(arguments.model, enable_prefix_caching=False, max_model_len=2 * LONGEST, threads=arguments.threads) as llm:
        text = llm.tokenizer.encode("\n".join(topics[name] for name in sorted(topics)))
        rows = []
        for traffic, kind, width in itertools.product(traffics, kinds, widths):
            rows.append(measure(llm, traffic, kind, width, arguments.requests, text))
            print(f"{traffic}, {kind}, {width}: {rows[-1]['saving']:.1f} %", file=sys.stderr, flush=True)
    print(table(rows, COLUMNS))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
