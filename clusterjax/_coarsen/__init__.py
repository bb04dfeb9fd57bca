"""To the end of time: tokens that have come together become one with their masses added."""

from .coarsen import coarsen as coarsen
from .tree import MergeTree as MergeTree
