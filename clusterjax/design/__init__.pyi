from ._delay import Delay as Delay, delay as delay
from ._hold import Hold as Hold, hold as hold
from ._recover import Recovery as Recovery, recover as recover
from ._sensitivity import Sensitivity as Sensitivity, sensitivity as sensitivity
from ._steer import Steering as Steering, steer as steer
