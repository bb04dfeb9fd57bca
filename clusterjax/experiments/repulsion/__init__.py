"""V = -I: full attention repels tokens into regular polygons and simplices, ever more slowly as beta grows."""

from .experiment import REPULSION as REPULSION
