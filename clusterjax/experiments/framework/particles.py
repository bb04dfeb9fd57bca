"""What figures 3 to 8 share of their claims: the exact statements on the first two tokens."""

from .experiment import Claim


MOST_TOKENS = 1024  # of each of many starts: the clusters are counted from all pairs


def second_token_claim(defect: float, lead: str = "", rest: str = "its angle to the first token") -> Claim:
    """That token 2 is where the formula for two tokens has it; `defect` in radians, see `pair_error`."""
    # The same sentence in the middle of one and at the beginning.
    says = "the second token is where the closed formula for two tokens has it."
    return Claim(
        says=f"{lead} {says}" if lead else says.capitalize(),
        measured=f"largest error of {rest}, over all starts and times: {defect:.1e} radians",
        criterion="less than 1e-6",
        holds=defect < 1e-6,
        kind="identity",
        value=defect,
    )


def first_token_claim(off: float, of: str = "") -> Claim:
    """That token 1 moves as if it were alone; `off` is how far it is from there, see `exact_first_token`."""
    return Claim(
        says="The first token follows exp(Vt) x_1(0), normalised, exactly.",
        measured=f"largest difference {of}{off:.1e}",
        criterion="less than 1e-6",
        holds=off < 1e-6,
        kind="identity",
        value=off,
    )
