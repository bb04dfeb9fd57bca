"""Clusters that are kept, and tokens that are kept apart: `design.hold`, and a change of V against collapse."""

from .experiment import DESIGN_HOLD as DESIGN_HOLD
