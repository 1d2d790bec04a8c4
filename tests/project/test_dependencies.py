"""Dependencies: each is used, declared, pinned for CI and accounted for in docs/DEPENDENCIES.md."""

import re
import sys

from project_files import ROOT, imports, modules, name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORT_NAMES = {"huggingface-hub": "huggingface_hub", "pyzmq": "zmq"}


def names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w.-]+", line)[0].lower() for line in requirements}  # type: ignore[index]


RUN_TIME = names(PROJECT["dependencies"])
DEVELOPMENT = names(PROJECT["optional-dependencies"]["dev"])


def test_the_package_imports_what_it_declares_and_no_more() -> None:
    declared = {IMPORT_NAMES.get(package, package): package for package in RUN_TIME}
    used: dict[str, str] = {}
    for path in modules():
        for line, dotted in imports(path):
            top = dotted.split(".")[0]
            if top != "octavo" and top not in sys.stdlib_module_names:
                used.setdefault(top, f"{name(path)}:{line}")
    undeclared = {top: where for top, where in used.items() if top not in declared}
    assert not undeclared, f"imported, but not in pyproject.toml: {undeclared}"
    unused = {package for top, package in declared.items() if top not in used}
    assert not unused, f"in pyproject.toml, but imported nowhere: {unused}"


def test_ci_pins_every_direct_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {line.split("==")[0].strip().lower() for line in lines if "==" in line and not line.startswith("#")}
    assert pins == RUN_TIME | DEVELOPMENT


def test_every_dependency_has_its_reason() -> None:
    page = (ROOT / "docs" / "DEPENDENCIES.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `([\w.-]+)` \|", page, re.MULTILINE))
    assert explained == RUN_TIME | DEVELOPMENT
