from ._axis import Axis as Axis
from ._outputs import Variable as Variable
from ._run import run as run
from ._store import open as open
