"""The discrete hardmax dynamics: its layer, its leaders, its limit set, and its theorem checked on data."""

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from ._certificate import (
        Certificate as Certificate,
        Clause as Clause,
        Examination as Examination,
        ExaminedClause as ExaminedClause,
        certificate as certificate,
        examine as examine,
    )
    from ._choose import LeaderChoice as LeaderChoice, choose_leaders as choose_leaders
    from ._layer import HardmaxLayer as HardmaxLayer, SoftmaxTwin as SoftmaxTwin
    from ._leaders import Leaders as Leaders, leaders as leaders
    from ._limit import LimitSet as LimitSet, limit_set as limit_set
else:
    from .._base.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
