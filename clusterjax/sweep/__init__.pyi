from ._batches import point_key as point_key
from ._labels import Axis as Axis, Variable as Variable
from ._run import run as run
from ._store import open as open
from ._survival import restricted_mean as restricted_mean
