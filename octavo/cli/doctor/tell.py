"""The doctor's report as text."""

from typing import Any

from octavo.cli.doctor.products import TIMED_ROWS, Shape
from octavo.cli.table import size, table


def tell(report: dict[str, Any]) -> str:
    """A report of `examine` for people."""
    processor, memory, threads = report["processor"], report["memory"], report["threads"]
    also = f" (also {', '.join(processor['also'])})" if processor["also"] else ""
    lines = [
        "  ".join(f"{name} {version}" for name, version in report["versions"].items()),
        "",
        f"processor    {processor['name']}, {processor['cpus']} CPUs, {processor['usable']} usable{also}",
        *(f"{'' if row else 'kernels':12} {path:12} {text}" for row, (path, text) in enumerate(report["kernels"].items())),
        f"threads      {threads['kernels']} for the kernels, {threads['torch']} for torch"
        f" (OMP_NUM_THREADS={threads['OMP_NUM_THREADS']})",
        f"OpenMP       {', '.join(report['openmp']) or 'none loaded'}",
        f"memory       {size(memory['total'])} in all, {size(memory['available'])} to be had (limited by the {memory['limited_by']})",
        f"huge pages   {report['huge_pages']}",
    ]
    if bandwidth := report.get("bandwidth"):
        lines.append(
            f"reading      {bandwidth['gb_s_median']:.1f} GB/s by {_count(bandwidth['threads'], 'thread')}"
            f" (best {bandwidth['gb_s_best']:.1f}; {size(bandwidth['bytes'])}, touched before)"
        )
    if products := report.get("products"):
        lines += ["", *_products(products, report["dtype"])]
    lines += ["", *(f"{level}: {text}" for level, text in report["findings"])]
    return "\n".join(lines) if report["findings"] else "\n".join([*lines, "Nothing to complain about."])


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


def _products(products: list[dict[str, Any]], dtype: str) -> list[str]:
    rows = []
    for product in products:
        row: dict[str, Any] = {"shape": str(Shape(product["n"], product["k"], product["gated"]))}
        row["bits"] = "same" if not product["differ"] else "DIFFER: " + ", ".join(product["differ"][:4])
        for speed in product["speed"]:
            other = speed["onednn_gflops"]
            ratio = f" ({speed['gflops'] / other:.2f})" if other else ""
            row[str(speed["rows"])] = f"{speed['gflops']:.0f}{ratio}"
        row["stream"] = product["speed"][0]["weight_gb_s"]
        rows.append(row)
    columns = {
        "shape": "product",
        "bits": "a row's bits in every batch",
        **{str(count): _count(count, "row") for count in TIMED_ROWS},
        "stream": "GB/s of weights at 1 row|.1f",
    }
    return [f"Matrix products, {dtype}: GFLOP/s (as a multiple of oneDNN's packed product)", table(rows, columns)]
