"""The discrete hardmax dynamics: its layer, its leaders, where tokens end, and its theorem checked on data."""

from ._layer import HardmaxLayer as HardmaxLayer, SoftmaxTwin as SoftmaxTwin
from ._leaders import Leaders as Leaders, leaders as leaders
