"""`python -m tests.fuzz [count] [seed] [loader ...]`: damage the files of all loaders, or of some, and report."""

import sys

import jax

from tests.fuzz.loaders import LOADERS
from tests.fuzz.trial import show, try_many


jax.config.update("jax_enable_x64", True)
count, seed = (int(word) for word in (sys.argv[1:3] + ["1000", "0"][len(sys.argv[1:3]) :]))
chosen = [loader for loader in LOADERS if not sys.argv[3:] or loader.name in sys.argv[3:]]
reports = []
for loader in chosen:
    reports.append(try_many(loader, count, seed))
    show(reports[-1:])
    sys.stdout.flush()
show(reports, most=0)
sys.exit(any(report.counts["fault"] for report in reports))
