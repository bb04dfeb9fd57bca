"""Long-time dynamics: tokens that have met are merged into one cluster, and their masses are added."""

from .coarsen import MergeTree as MergeTree, coarsen as coarsen
