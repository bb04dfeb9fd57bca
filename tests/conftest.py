"""Every test runs in float64 with strict promotion; a test that wants float32 asks for it by dtype."""

import gc
import hashlib
import os
import shutil
import time
from importlib.metadata import version
from pathlib import Path


# Nearly all of the time of these tests goes to compiling, and of large programs most of that to making fast what runs
# once. XLA leaves this out here, but for the modules marked `optimised`, which run for long or are of rounding, and for
# what runs in a process of its own: examples, notebooks, commands. `OPTIMISED=1` compiles all as for users, as `make
# exhaustive` does.
QUICK = not os.environ.get("OPTIMISED")
if QUICK and version("jaxlib").startswith("0.10."):  # a flag that XLA does not know ends the process
    flags = ("use_fusion_emitters=false", "parallel_codegen_split_count=1", "prefer_vector_width=128")
    os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_cpu_{flag}" for flag in flags))

import jax
import jax.random as jr
import pytest


gc.disable()  # until everything is collected: nothing is garbage before, and looking for it takes a fifth of the time

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", QUICK)
jax.config.update("jax_traceback_filtering", "off")  # pytest cuts them itself; jax looks at the path of each frame
jax.config.update("jax_traceback_in_locations_limit", 0)  # no operation of a program bears the lines that made it
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def keep_compiled(folder):
    """What was compiled is read in the next run: .jax_cache, which `make clean` removes. On a new checkout it is empty.

    The name of an entry is a hash of the program, of the flags and options of XLA and of the version of jaxlib; that of
    the folder is one of what this processor can do. A half-written entry (a run was killed) is compiled anew.
    """
    cpu = Path("/proc/cpuinfo")
    features = {line for line in cpu.read_text().splitlines() if line.startswith(("flags", "Features", "model name"))}
    folder = folder / hashlib.sha256("".join(sorted(features)).encode()).hexdigest()[:16]
    # Nothing of it is ever removed by jax: from time to time the whole is.
    if folder.exists() and sum(entry.stat().st_size for entry in folder.iterdir()) > 400e6:
        shutil.rmtree(folder, ignore_errors=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Small programs too: what one process of the tests compiled, the other reads.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


if QUICK and Path("/proc/cpuinfo").exists() and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    keep_compiled(Path(__file__).resolve().parents[1] / ".jax_cache")


def parameter_values(item):
    """What a case of a parametrised test is of: one entry for each of its lists of parameters, and for each fixture."""
    chosen, values = dict(item.callspec.params), set()
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        values.add((*names, *(id(chosen.pop(name)) for name in names)))
    return values | {(name, id(value)) for name, value in chosen.items()}


def leave_combinations_out(items):
    """Where a test has several lists of parameters, `make test` takes each value once and not all combinations.

    A case is taken if it has a value that no case before it had, and, of those, first the one with most new values.
    """
    tests = {}
    for item in items:
        if hasattr(item, "callspec") and not item.get_closest_marker("exhaustive"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append((item, parameter_values(item)))
    for cases in tests.values():
        missing = set().union(*(values for _, values in cases))
        while missing:
            best = max(range(len(cases)), key=lambda place: len(cases[place][1] & missing))
            missing -= cases.pop(best)[1]
        for item, _ in cases:
            item.add_marker(pytest.mark.exhaustive)


def leave_cases_out(items, all_collected=True):
    """Mark the cases that `exhaustive_cases` names by their ids, and refuse an id that no collected case bears."""
    tests = {}
    for item in items:
        if item.get_closest_marker("exhaustive_cases"):
            tests.setdefault(item.nodeid.partition("[")[0], {})[item.nodeid.partition("[")[2][:-1]] = item
    for name, cases in tests.items():
        ids = next(iter(cases.values())).get_closest_marker("exhaustive_cases").args
        for case in ids:
            if case in cases:
                cases[case].add_marker(pytest.mark.exhaustive)
            elif all_collected:
                raise pytest.UsageError(
                    f"exhaustive_cases({case!r}) of {name} names no case; its cases: {', '.join(cases)}"
                )


def pytest_collection_modifyitems(config, items):
    """Choose what `make test` runs, and run first what is compiled as for users: no program is compiled twice."""
    leave_cases_out(items, not any("[" in argument for argument in config.args))
    leave_combinations_out(items)
    items.sort(key=lambda item: item.get_closest_marker("optimised") is None)


def pytest_collection_finish(session):
    """What lives to the end, of jax, PyTorch and the tests, is not looked through again for garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
    gc.enable()


@pytest.fixture
def getkey():
    """A function that returns a fresh PRNG key at each call; the sequence is the same in every run."""
    state = [jr.key(20241)]

    def next_key():
        state[0], key = jr.split(state[0])
        return key

    return next_key


MAPS = Path("/proc/self/maps")  # Linux has it, and allows a process 65,530 of them
COUNTED = [0.0]  # when


@pytest.fixture(autouse=True)
def few_maps():
    """Each compiled function takes about twenty memory maps; a process that is out of them crashes in XLA.

    They are counted every ten seconds, for counting takes its time; no ten seconds and no test take 20,000.
    """
    yield
    if MAPS.exists() and time.monotonic() > COUNTED[0] + 10:
        COUNTED[0] = time.monotonic()
        if MAPS.read_bytes().count(b"\n") > 45_000:
            jax.clear_caches()
            gc.collect()


@pytest.fixture(scope="module", autouse=True)
def compiled_as_for_users(request):
    """The whole compiler for the modules that ask for it: nothing is used that was compiled otherwise."""
    if not (QUICK and request.node.get_closest_marker("optimised")):
        yield
        return
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()
