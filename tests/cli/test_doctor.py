"""What the doctor reads from a machine's files, what it concludes, and how it tells."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo.cli.doctor.bandwidth import read_bandwidth
from octavo.cli.doctor.host import huge_pages, missing_flags, openmp_runtimes, read_processor
from octavo.cli.doctor.kernels import explain_paths, findings
from octavo.cli.doctor.products import MAX_ROWS, Shape, examine_products, one_product, rows_that_differ, shapes_of
from octavo.cli.doctor.tell import tell
from octavo.kernels.reference_executor import ReferenceExecutor

AVX512 = frozenset(["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"])
MAPS = """\
7f00-7f01 r-xp 00000000 08:01 11  /usr/lib/python3/torch/lib/libgomp-a34b3233.so.1
7f01-7f02 r--p 00000000 08:01 11  /usr/lib/python3/torch/lib/libgomp-a34b3233.so.1
7f02-7f03 r--p 00000000 08:01 12  /opt/intel/lib with space/libiomp5.so
7f03-7f04 rw-p 00000000 00:00 0
7f04-7f05 r--p 00000000 08:01 13  /usr/lib/libgompy/other.so
7f05-7f06 r--p 00000000 08:01 14  /usr/lib/libomp.so.5
"""


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_processor(tmp_path: Path) -> None:
    text = "processor : 0\nmodel name\t: Fast One\nflags\t\t: avx2 fma\n\nprocessor : 1\nmodel name : Slow One\nflags : sse\n"
    found = read_processor(machine(tmp_path, {"proc/cpuinfo": text}))
    assert (found.name, found.flags) == ("Fast One", {"avx2", "fma"}) and found.usable >= 1
    assert read_processor(tmp_path / "none").flags == frozenset()


def test_openmp_runtimes_are_named_once() -> None:
    assert openmp_runtimes(MAPS) == [
        "/usr/lib/python3/torch/lib/libgomp-a34b3233.so.1",
        "/opt/intel/lib with space/libiomp5.so",
        "/usr/lib/libomp.so.5",
    ]


def test_huge_pages(tmp_path: Path) -> None:
    name = "sys/kernel/mm/transparent_hugepage/enabled"
    assert huge_pages(machine(tmp_path, {name: "always [madvise] never\n"})) == "madvise"
    assert huge_pages(tmp_path / "none") == "unknown"


def test_why_a_path_is_used() -> None:
    texts = explain_paths(["module"], ["avx512", "avx2", "portable"], AVX512, "")
    assert texts == {
        "avx512_bf16": "the processor lacks avx512_bf16",
        "avx512": "in use",
        "avx2": "could be used (--kernels avx2)",
        "portable": "could be used (--kernels portable)",
        "reference": "could be used (--kernels reference)",
    }
    texts = explain_paths([], [], AVX512, "no compiler")
    assert texts["avx512"] == "no compiled kernels are installed"
    assert texts["reference"] == "in use, many times slower: no compiler"
    texts = explain_paths(["module"], ["avx2"], AVX512, "")
    assert texts["avx512"].startswith("not in this build")
    assert missing_flags("avx2", frozenset({"avx2"})) == ["fma", "f16c"]


def test_findings() -> None:
    good: dict[str, Any] = {"runnable": ["avx2"], "reason": "", "runtimes": ["a"], "huge_pages": "madvise", "differing": []}
    good |= {"load": 0.4, "cpus": 2}
    assert findings(**good) == []
    assert "load 1.5 on 2" in findings(**{**good, "load": 1.5})[0][1]
    assert [level for level, _ in findings(**{**good, "differing": ["64x64"]})] == ["fault"]
    slow = findings(runnable=[], reason="no g++", runtimes=["a", "b"], huge_pages="never", differing=[], load=0.0, cpus=2)
    assert [level for level, _ in slow] == ["slow"] * 3 and "no g++" in slow[0][1] and "a, b" in slow[1][1]


def test_rows_that_differ() -> None:
    steady = torch.randn(MAX_ROWS, 8)
    assert rows_that_differ(lambda rows: steady[torch.from_numpy(rows).long()]) == []
    not_a_number = torch.full((MAX_ROWS, 2), torch.nan)
    assert rows_that_differ(lambda rows: not_a_number[: len(rows)]) == []

    def alone_differs(rows: np.ndarray) -> torch.Tensor:
        return steady[torch.from_numpy(rows).long()] * (1.0 + 1e-6 * (len(rows) == 1))

    found = rows_that_differ(alone_differs)
    assert {"1 row at 0", "1 row at 511", "1 row at 7"} <= set(found) and all(text.startswith("1 row at ") for text in found)

    def edge_differs(rows: np.ndarray) -> torch.Tensor:
        result = steady[torch.from_numpy(rows).long()].clone()
        result[-1] += float(len(rows) == 17)
        return result

    assert rows_that_differ(edge_differs) == [f"17 rows at {first}" for first in (0, 1, 7, 250)]


@pytest.mark.parametrize("shape", [Shape(24, 16), Shape(32, 16, gated=True)])
def test_a_product_is_examined_through_an_executor(shape: Shape) -> None:
    program, _, weight = one_product(shape, torch.float32)
    assert shapes_of(program) == [shape] and weight.shape == (shape.n, shape.k)

    def make(program: Any, spec: Any, rows: int) -> ReferenceExecutor:
        arena = torch.zeros(spec.block_bytes, dtype=torch.uint8)
        return ReferenceExecutor(program, spec, arena, max_tokens=rows, max_logit_rows=rows, threads=1)

    (found,) = examine_products([shape], torch.float32, make)
    assert (found["n"], found["k"], found["gated"]) == (shape.n, shape.k, shape.gated)
    assert [speed["rows"] for speed in found["speed"]] == [1, 8, 32, 128, 512]
    assert all(speed["gflops"] > 0 for speed in found["speed"])


def test_bandwidth_puts_the_thread_count_back() -> None:
    before = torch.get_num_threads()
    found = read_bandwidth(1, size=2**20, seconds=0.0)
    assert found["bytes"] == 2**20 and found["gb_s_best"] >= found["gb_s_median"] > 0
    assert torch.get_num_threads() == before


def report(**more: Any) -> dict[str, Any]:
    return {
        "versions": {"octavo": "1.0", "torch": "2.0"},
        "processor": {"name": "Fast One", "cpus": 4, "usable": 2, "flags": None, "also": ["avx512_vnni"]},
        "kernels": {"avx2": "in use", "reference": "could be used"},
        "memory": {"total": 2**34, "available": 2**33, "limited_by": "machine"},
        "huge_pages": "madvise",
        "threads": {"kernels": 2, "torch": 2, "OMP_NUM_THREADS": None},
        "openmp": ["/lib/libgomp.so.1"],
        "findings": [],
        **more,
    }


def test_the_report_as_text() -> None:
    text = tell(report())
    assert "octavo 1.0  torch 2.0" in text and "Fast One, 4 CPUs, 2 usable (also avx512_vnni)" in text
    assert "8.0 GiB to be had (limited by the machine)" in text and text.endswith("Nothing to complain about.")
    speed = [{"rows": rows, "gflops": 100.0, "onednn_gflops": 80.0 if rows > 1 else None, "weight_gb_s": 20.0} for rows in (1, 8)]
    products = [
        {"n": 64, "k": 32, "gated": False, "differ": [], "speed": speed},
        {"n": 64, "k": 32, "gated": True, "differ": ["1 row at 0"], "speed": speed},
    ]
    bandwidth = {"bytes": 2**29, "threads": 2, "gb_s_median": 30.0, "gb_s_best": 33.0}
    text = tell(report(products=products, dtype="bfloat16", bandwidth=bandwidth, findings=[("fault", "bad bits")]))
    assert "| 64x32       | same" in text and "DIFFER: 1 row at 0" in text and "100 (1.25)" in text and "30.0 GB/s" in text
    assert text.endswith("fault: bad bits")
