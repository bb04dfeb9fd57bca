"""beta = 0: the flow moves tokens by Moebius maps, and conserves their cross ratios."""

from .experiment import MOEBIUS as MOEBIUS
