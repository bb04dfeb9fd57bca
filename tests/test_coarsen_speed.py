"""Slopes along the orbit are the same at every size of the velocities, those included whose squares no float holds."""

import numpy as np
import pytest

from clusterjax._coarsen.steps import along_orbit


@pytest.mark.parametrize("size", (1e-300, 1e-200, 1e-126, 1e-124, 1.0, 1e124, 1e126, 1e200, 1e300))
def test_slopes_do_not_depend_on_the_size_of_velocities(size):
    velocity = np.array([[3.0, 0.0], [0.0, -4.0]])
    found = along_orbit(size * velocity, 2.0)
    np.testing.assert_allclose(found, [0.6, 0, 0, -0.8, 0.4 / size], rtol=1e-14)
