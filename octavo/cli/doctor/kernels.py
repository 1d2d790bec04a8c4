"""Which kernels are in use, and why not better ones."""

from collections.abc import Collection, Sequence

from octavo.cli.doctor.host import PATH_FLAGS, missing_flags


def explain_paths(built: Sequence[str], runnable: Sequence[str], flags: Collection[str], reason: str) -> dict[str, str]:
    """Per path, best first, a word on it: "in use", or what stands in its way.

    built: nothing, or the name of the module that holds compiled kernels.  runnable: paths that it offers here, best first.
    flags: of the processor, as /proc/cpuinfo has them.  reason: why there are no compiled kernels, if there are none.
    """
    texts: dict[str, str] = {}
    for path in PATH_FLAGS:
        lacking = missing_flags(path, frozenset(flags))
        if runnable and path == runnable[0]:
            texts[path] = "in use"
        elif path in runnable:
            texts[path] = f"could be used (--kernels {path})"
        elif lacking:
            texts[path] = f"the processor lacks {', '.join(lacking)}"
        elif built:
            texts[path] = "not in this build, or the operating system doesn't keep its registers"
        else:
            texts[path] = "no compiled kernels are installed"
    texts["reference"] = "could be used (--kernels reference)" if runnable else f"in use, many times slower: {reason}"
    return texts


def findings(
    *,
    runnable: Sequence[str],
    reason: str,
    runtimes: Sequence[str],
    huge_pages: str,
    differing: Sequence[str],
    load: float,
    cpus: int,
) -> list[tuple[str, str]]:
    """What a person should know, as (level, text): "fault" breaks a promise of Octavo's, "slow" costs speed only.

    load: of the last minute, before anything was measured; cpus: that this process may use.
    """
    found: list[tuple[str, str]] = []
    if differing:
        found.append(("fault", f"the bits of a row depend on its batch in {', '.join(differing)}: please report this"))
    if not runnable:
        found.append(("slow", f"there are no compiled kernels: {reason}"))
    if len(runtimes) > 1:
        names = ", ".join(runtimes)
        found.append(("slow", f"{len(runtimes)} OpenMP runtimes are loaded, and their threads get in each other's way: {names}"))
    if huge_pages == "never":
        found.append(
            (
                "slow",
                "transparent huge pages are off: weights and KV cache are read in pages of 4 KiB; as root,"
                " `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled` changes it",
            )
        )
    if load > cpus / 2:
        found.append(("slow", f"other processes keep the CPUs busy (load {load:.1f} on {cpus}): what was measured is too low"))
    return found
