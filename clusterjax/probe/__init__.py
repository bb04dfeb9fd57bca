"""Tools for trained encoders and causal networks: loading, running, tracing by layer, conversion to particle models."""

import lazy_loader

from .._base.extras import require


require(__name__, "probe", "flax", "transformers")
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
