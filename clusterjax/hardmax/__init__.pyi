from ._certificate import (
    Certificate as Certificate,
    Clause as Clause,
    Examination as Examination,
    ExaminedClause as ExaminedClause,
    certificate as certificate,
    examine as examine,
)
from ._choose_leaders import LeaderChoice as LeaderChoice, choose_leaders as choose_leaders
from ._layer import HardmaxLayer as HardmaxLayer, SoftmaxTwin as SoftmaxTwin
from ._leaders import Leaders as Leaders, leaders as leaders
from ._limit import LimitSet as LimitSet, limit_set as limit_set
