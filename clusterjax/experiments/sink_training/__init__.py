"""Do attention sinks come with training, and only with a token that begins every text?"""

from .experiment import SINK_TRAINING as SINK_TRAINING
