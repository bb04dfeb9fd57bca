"""Counts and lists of what the doors do: see the package's docstring."""

import collections
import os
import sys
import tempfile
import time
import warnings

import jax


jax.config.update("jax_enable_x64", True)

from tests.doors import KNOWN, cases_of, known
from tests.doors.inside import is_door
from tests.doors.walk import MODULES, public, walk


def main(arguments: list[str]) -> None:
    write = "--known" in arguments
    dear = "--dear" in arguments
    only = [name.removeprefix("--only=") for name in arguments if name.startswith("--only=")]
    modules = [name for name in arguments if not name.startswith("--")] or [name or "clusterjax" for name in MODULES]
    warnings.simplefilter("error")
    total = collections.Counter()
    for module in modules:
        module = "" if module == "clusterjax" else module
        counted, faults, missing = collections.Counter(), [], []
        for name, called in public(module).items():
            if only and not any(word in name for word in only):
                continue
            case = cases_of(module).get(name)
            if case is None:
                if is_door(name):
                    missing.append(name)
                continue
            begin = time.perf_counter()
            for verdict in walk(name, called, case, dear=dear):
                if verdict.is_fault and not write:
                    print(f"   {verdict.where}: {verdict.outcome}", flush=True)
                counted["fault" if verdict.is_fault else verdict.outcome] += 1
                if verdict.is_fault:
                    faults.append(verdict)
                    counted[verdict.outcome.partition(":")[0]] += 1
            print(f"   {name} {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
        total += counted
        print(f"== {module or 'clusterjax'}: {dict(counted)}; without a case: {len(missing)} {missing}", flush=True)
        if write:
            (KNOWN / f"{module or 'clusterjax'}.txt").write_text("".join(f"{v.where}\n" for v in faults))
        stale = known(module) - {verdict.where for verdict in faults}
        if stale and not write:
            print(f"   no longer: {len(stale)}")
    print(dict(total))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main(sys.argv[1:])
