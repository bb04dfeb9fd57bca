"""Every test runs in float64 with strict promotion; a test of float32 asks for it by dtype."""

import gc
import hashlib
import os
import shutil
import time
from importlib.metadata import version
from pathlib import Path


# Nearly all of the time of these tests goes to compilation, most of it for large programs to optimisations of code that
# runs once. XLA omits these optimisations here, except in the modules marked `optimised`, which run for long or test
# rounding, and in separate processes: examples, notebooks, commands. `OPTIMISED=1` compiles everything as for users;
# `make exhaustive` sets it.
QUICK = not os.environ.get("OPTIMISED")
if QUICK and version("jaxlib").startswith("0.10."):  # XLA ends the process at an unknown flag
    flags = ("use_fusion_emitters=false", "parallel_codegen_split_count=1", "prefer_vector_width=128")
    os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_cpu_{flag}" for flag in flags))

import jax
import jax.random as jr
import pytest


gc.disable()  # until all tests are collected: no garbage exists before, and the search takes a fifth of the time

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", QUICK)
jax.config.update("jax_traceback_filtering", "off")  # pytest cuts tracebacks itself; jax checks the path of each frame
jax.config.update("jax_traceback_in_locations_limit", 0)  # no operation of a program records the lines of its source
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def keep_compiled(folder):
    """Keep compiled programs for the next run in .jax_cache, which `make clean` removes and a new checkout lacks.

    An entry is named by a hash of the program, of the flags and options of XLA and of the version of jaxlib, the folder
    by a hash of the features of the processor. A half-written entry of a killed run is compiled again.
    """
    cpu = Path("/proc/cpuinfo")
    features = {line for line in cpu.read_text().splitlines() if line.startswith(("flags", "Features", "model name"))}
    folder = folder / hashlib.sha256("".join(sorted(features)).encode()).hexdigest()[:16]
    # jax never removes an entry, so the whole folder is removed when it is too large.
    if folder.exists() and sum(entry.stat().st_size for entry in folder.iterdir()) > 400e6:
        shutil.rmtree(folder, ignore_errors=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Small programs are kept too, because the processes of the tests share them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


if QUICK and Path("/proc/cpuinfo").exists() and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    keep_compiled(Path(__file__).resolve().parents[1] / ".jax_cache")


def parameter_values(item):
    """The values of one case: one entry for each list of parameters of its test, and for each fixture."""
    chosen, values = dict(item.callspec.params), set()
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        values.add((*names, *(id(chosen.pop(name)) for name in names)))
    return values | {(name, id(value)) for name, value in chosen.items()}


def leave_combinations_out(items):
    """Where a test has several lists of parameters, `make test` takes each value once and not all combinations.

    The case with the most values that no chosen case has is chosen next, until every value occurs.
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
    """Mark the cases that `exhaustive_cases` names by their ids, and refuse an id that no collected case has."""
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
    """Choose the cases of `make test`, and run the modules marked `optimised` first: no program is compiled twice."""
    leave_cases_out(items, not any("[" in argument for argument in config.args))
    leave_combinations_out(items)
    items.sort(key=lambda item: item.get_closest_marker("optimised") is None)


def pytest_collection_finish(session):
    """Objects of jax, PyTorch and the tests that live to the end are not searched for garbage again."""
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


MAPS = Path("/proc/self/maps")  # on Linux, which allows a process 65,530 memory maps
COUNTED = [0.0]  # the time of the last count


@pytest.fixture(autouse=True)
def few_maps():
    """Each compiled function takes about twenty memory maps, and a process with too many maps crashes in XLA.

    The maps are counted every ten seconds, because counting takes time; no ten seconds and no test take 20,000.
    """
    yield
    if MAPS.exists() and time.monotonic() > COUNTED[0] + 10:
        COUNTED[0] = time.monotonic()
        if MAPS.read_bytes().count(b"\n") > 45_000:
            jax.clear_caches()
            gc.collect()


@pytest.fixture(scope="module", autouse=True)
def compiled_as_for_users(request):
    """Compile modules marked `optimised` as for users, without the programs that were compiled otherwise."""
    if not (QUICK and request.node.get_closest_marker("optimised")):
        yield
        return
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()
