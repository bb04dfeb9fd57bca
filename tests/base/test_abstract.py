"""An abstract class tells the author of a subclass in one sentence everything that the subclass lacks."""

import equinox as eqx
import pytest

import clusterjax as cjx
from clusterjax._base.types import AbstractPart, lacking
from tests.house.test_modules import module_classes


PUBLIC = [name for name in cjx.__all__ if name.startswith("Abstract")]


@pytest.mark.parametrize("name", PUBLIC)
def test_an_abstract_class_names_what_a_subclass_writes(name):
    cls = getattr(cjx, name)
    wanted = cls.__abstractmethods__ | cls.__abstractvars__
    subclass = type("Mine", (cls,), {"__module__": __name__})
    for made, begin in (
        (cls, f"^{name} must be subclassed, since it is abstract; write the "),
        (subclass, "^Mine must"),
    ):
        with pytest.raises(TypeError, match=begin) as raised:
            made()
        sentence = str(raised.value)
        assert all(part in sentence.replace(",", " ").replace(";", " ").split() for part in wanted), sentence
        assert sentence.endswith(".") and "\n" not in sentence


def test_the_sentence():
    class Half(cjx.AbstractAttention):
        mask: cjx.AbstractMask = cjx.FullMask()

        def check(self, n, d):
            pass

    with pytest.raises(TypeError) as raised:
        Half()
    assert str(raised.value) == (
        "Half must have the methods weights and average and the attributes query_key and summation, which "
        "AbstractAttention wants of a subclass, but it has not; write what is missing."
    )

    class Searches(cjx.AbstractNearestSearch):
        pass

    with pytest.raises(TypeError, match="^Searches must have the method hardmax and the attribute supports, which Abs"):
        Searches()


def test_all_arguments_are_passed_on_where_nothing_is_missing():
    class Shifted(cjx.AbstractSchedule):
        by: float
        scale: float = 2.0

        def __call__(self, t):
            return self.scale * (t + self.by)

        def jumps(self):
            return None

    assert Shifted(1.0)(2.0) == 6.0 and Shifted(by=1.0, scale=1.0)(2.0) == 3.0
    assert lacking(Shifted) is None
    with pytest.raises(TypeError, match="by"):
        Shifted()


def test_every_abstract_module_speaks_so():
    """All abstract modules share one base; a new abstract module without this base fails here."""
    abstract = [
        cls for cls in module_classes() if cls.__abstractmethods__ or cls.__abstractvars__ or cls.__abstractclassvars__
    ]
    assert len(abstract) > 15
    assert [cls.__name__ for cls in abstract if not issubclass(cls, AbstractPart)] == []
    assert issubclass(AbstractPart, eqx.Module) and lacking(AbstractPart) is None
