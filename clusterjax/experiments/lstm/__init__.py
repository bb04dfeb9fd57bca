"""The cell state of an LSTM beside the residual stream of a transformer that was trained on the same texts."""

from .experiment import LSTM as LSTM
