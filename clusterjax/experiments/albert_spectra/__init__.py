"""The spectra of a trained network's heads: V in the complex plane, Q^T K, effective beta, and the words of V."""

from .experiment import ALBERT_SPECTRA as ALBERT_SPECTRA
