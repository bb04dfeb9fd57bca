"""What is claimed of words on their way: that they gather at leaders, which carry the sentiment of the review."""

from ..framework.experiment import Claim
from ..sentiment.model import CLEAR, POSTER
from .measure import ON_LEADER, Chosen, Results


def claims_of(pair: tuple[Chosen, Chosen]) -> tuple[Claim, ...]:
    """All claims of the figure."""
    # Of either review: the leader farthest from the line, and how much it says of sentiment.
    farthest = [(review.run.names[review.farthest], float(review.ratio[review.farthest])) for review in pair]
    error = max(review.error for review in pair)
    # The worse of the two reviews decides.
    gathered = min(review.gathered for review in pair)
    moves = max(review.moves for review in pair)
    return (
        Claim(
            says="The logit is what the decoder reads from the mean of the words that are drawn.",
            measured=f"largest difference {error:.1e}",
            criterion="less than 1e-4",
            holds=error < 1e-4,
            kind="identity",
            value=error,
        ),
        Claim(
            says="The leaders furthest away from the decision hyperplane convey sentiment.",
            measured="; ".join(f'"{name}", log ratio {ratio:+.2f}' for name, ratio in farthest),
            criterion=f"log ratio at least {CLEAR:g} in the positive review, at most -{CLEAR:g} in the negative one",
            holds=farthest[0][1] >= CLEAR and farthest[1][1] <= -CLEAR,
            kind="paper",
            source=POSTER,
        ),
        Claim(
            says="After 8 layers the words are gathered at their leaders, three quarters of them in both reviews.",
            measured=f"{100 * pair[0].gathered:.0f} % and {100 * pair[1].gathered:.0f} % of the words are within "
            f"{100 * ON_LEADER:g} % of the longest word's length from a leader",
            criterion="at least 75 % in both",
            holds=gathered >= 0.75,
            kind="finding",
            value=gathered,
        ),
        Claim(
            says="8 layers are enough for the clustered state.",
            measured=f"from layer 8 to 64 no word moves farther than {100 * moves:.2f} % of the longest word's length",
            criterion="less than 5 %",
            holds=moves < 0.05,
            kind="paper",
            value=moves,
            source=POSTER,
        ),
    )


def caption_of(m: Results) -> str:
    """What is seen."""
    (which, source), p = m.of, m.p
    led = [", ".join(f'"{review.run.names[i]}"' for i in review.run.leading(len(review.run.xs))) for review in m.pair]
    return (
        f"The words of a positive (left) and of a negative review (right), each {which}, on their way through the 8 "
        f"hardmax layers of a d = 2 model, trained on {source}. Of the correctly classified reviews of {p.shortest} to "
        f"{p.longest} different words whose farthest leader is one of the 15 most frequent ones, these are the most "
        "confident on either side. Across the picture: the distance from the decision line (dashed), negative side "
        "vermilion, positive side blue; along it: the place on the line, drawn on a larger scale. Leaders are stars "
        "from the layer on at which they attend to themselves alone; the number behind a leader's name is how many "
        f"words lie on it. The leaders are {led[0]} and {led[1]}. Names without room are left out."
    )
