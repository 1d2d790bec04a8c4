"""The direction of imports: a folder is one idea and imports only those below it; the two sides meet in `core` and `engine`."""

import subprocess
import sys
import textwrap

import pytest
from project_files import PACKAGE, ROOT, imports, modules, name

DOING = {"kernels", "sampling", "text", "models", "runner"}
DECIDING = {"kv", "scheduler"}
ENGINE = {"core", "spec", "engine"} | DECIDING | DOING

# Folder or top module of octavo -> what of octavo it may import, besides itself.  A new folder gets its line here.
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "spec": {"core"},
    "kv": {"core", "spec"},
    "scheduler": {"core", "spec", "kv"},
    "kernels": {"core", "spec"},
    "sampling": {"core", "spec", "kernels"},
    "text": {"core", "spec", "kernels"},
    "models": {"core", "spec", "kernels", "sampling", "text"},
    "runner": {"core", "spec", "kernels", "sampling", "text", "models"},
    "engine": ENGINE,
    "llm": ENGINE,
    "server": ENGINE | {"llm"},
    "cli": ENGINE | {"llm", "server"},
    "__init__": {"core", "llm"},
}
TORCH_FREE = ("core", "spec", "kv", "scheduler")
HEAVY = {"torch", "transformers", "tokenizers", "safetensors", "gguf", "huggingface_hub"}


def home(dotted: str) -> str | None:
    """Folder or top module of octavo that a dotted name lives in; None for other packages; "__init__" for the package itself."""
    top, _, rest = dotted.partition(".")
    if top != "octavo":
        return None
    part = rest.split(".")[0]
    return part if (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file() else "__init__"


def place(path_name: str) -> str:
    """Folder or top module of octavo in which a file lies."""
    parts = path_name.split("/")
    return parts[1] if len(parts) > 2 else parts[1].removesuffix(".py")


def test_every_folder_has_a_line_in_the_table() -> None:
    assert {place(name(path)) for path in modules()} <= set(ALLOWED)


def test_the_table_has_no_cycle() -> None:
    for folder, below in ALLOWED.items():
        for other in below - {folder}:
            assert folder not in ALLOWED[other], f"{folder} and {other} may import each other"


def test_imports_go_downwards() -> None:
    wrong = []
    for path in modules():
        here = place(name(path))
        for line, dotted in imports(path):
            there = home(dotted)
            # `octavo.__version__` and the like are the root's own values; its lazy classes belong to llm.
            if there is None or there == here or there in ALLOWED[here] or dotted == "octavo.__version__":
                continue
            wrong.append(f"{name(path)}:{line} imports {dotted}: {here} may import only {sorted(ALLOWED[here])}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", TORCH_FREE)
def test_the_deciding_side_never_names_torch(folder: str) -> None:
    wrong = [
        f"{name(path)}:{line} imports {dotted}"
        for path in modules()
        if place(name(path)) == folder
        for line, dotted in imports(path)
        if dotted.split(".")[0] in HEAVY
    ]
    assert not wrong, "\n".join(wrong)


def test_the_deciding_side_imports_where_torch_cannot_be() -> None:
    """Imports every module of it in a process in which torch and its kin can't be found."""
    names = ["octavo"] + [
        name(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in modules()
        if place(name(path)) in TORCH_FREE
    ]
    run_python(f"""
        import importlib, sys
        blocked = {sorted(HEAVY)!r}
        sys.modules.update(dict.fromkeys(blocked))  # None in sys.modules makes an import raise ImportError
        for module in {names!r}:
            importlib.import_module(module)
    """)


@pytest.mark.parametrize("module", ["octavo", "octavo.cli.main", "octavo.kernels.availability"])
def test_a_light_import_loads_no_torch(module: str) -> None:
    run_python(f"""
        import sys, {module}
        heavy = sorted({HEAVY!r} & set(sys.modules))
        assert not heavy, f"import {module} loads {{heavy}}"
    """)


def test_lazy_names_are_the_real_ones() -> None:
    run_python("""
        import octavo
        from octavo.core.params import SamplingParams
        assert octavo.SamplingParams is SamplingParams
        assert set(octavo.__all__) <= set(dir(octavo))
        try:
            octavo.Nothing
        except AttributeError as error:
            assert "Nothing" in str(error)
        else:
            raise AssertionError("an unknown name was found")
    """)


def run_python(program: str) -> None:
    """Run a program in a fresh interpreter from the project's root; fails with what it printed."""
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
