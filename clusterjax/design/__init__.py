"""Design by gradient: parameters that made a run, that lead tokens to given points, or that keep tokens apart."""

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from ._delay import Delay as Delay, delay as delay
    from ._hold import Hold as Hold, hold as hold
    from ._recover import Recovery as Recovery, recover as recover
    from ._sensitivity import Sensitivity as Sensitivity, sensitivity as sensitivity
    from ._steer import Steering as Steering, steer as steer
else:
    from .._base.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
