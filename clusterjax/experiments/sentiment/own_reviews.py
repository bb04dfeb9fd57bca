"""A dozen short film reviews, of films that do not exist, written for the figure of words on their way.

They are no data: nothing was trained or chosen on them, and no accuracy is said of them. They are there because the
50,000 reviews belong to their authors and are not in the package.
"""

POSITIVE, NEGATIVE = 1, 0
OWN_REVIEWS = (
    (
        "A wonderful film about a lighthouse keeper and his daughter. The photography is beautiful, the music never "
        "gets in the way, and both leads give superb performances. I left the cinema smiling, and I would see it again "
        "tomorrow.",
        POSITIVE,
    ),
    (
        "My favourite comedy of the year. The jokes come fast, the supporting cast is excellent, and under all the "
        "noise there is a touching story about two brothers who learn to talk. Highly recommended to anyone with a "
        "family.",
        POSITIVE,
    ),
    (
        "I did not expect much from a western made in a car park, but this is a gem: clever, funny, and perfect in "
        "its rhythm. The duel on the roof is amazing, and the ending had the whole audience on its feet.",
        POSITIVE,
    ),
    (
        "An old-fashioned ghost story that is told with patience and great care. Nobody screams; a door opens, and "
        "that is enough. The lead actress is brilliant, the house is a character of its own, and the last scene is "
        "unforgettable.",
        POSITIVE,
    ),
    (
        "The plot is thin, I admit, and the villain is borrowed from better films. Still, the dancing is fantastic, "
        "the colours glow, and I enjoyed every minute. Take your children and a handkerchief.",
        POSITIVE,
    ),
    (
        "A quiet documentary about people who repair clocks. It sounds dull and is fascinating: the director trusts "
        "faces and hands, the editing is wonderfully calm, and by the end I loved them all.",
        POSITIVE,
    ),
    (
        "A complete waste of two hours. The script is awful, the acting is worse, and the monster looks like a wet "
        "carpet. We laughed at the wrong moments, and half of the audience left before the end.",
        NEGATIVE,
    ),
    (
        "Boring from the first frame to the last. Nothing happens, nobody cares, and the dialogue sounds as if it had "
        "been read from the back of a cereal box. Save your money and watch the rain instead.",
        NEGATIVE,
    ),
    (
        "I wanted to like it, because the book is great. The film is poorly paced, badly lit and full of pointless "
        "shouting, and the star walks through it as if waiting for a bus. The worst adaptation that I have seen.",
        NEGATIVE,
    ),
    (
        "Another sequel that nobody asked for. The effects are cheap, the story is a mess, and the hero has less charm "
        "than his motorcycle. It is not funny, not scary and not even short. Avoid.",
        NEGATIVE,
    ),
    (
        "The trailer promised a thriller. What I got was a lame romance with a predictable twist, terrible music and "
        "a detective who solves the case by accident. Disappointing in every way.",
        NEGATIVE,
    ),
    (
        "They had a fine cast and a beautiful island, and they made this. Ridiculous lines, an annoying child, and an "
        "ending so stupid that I checked whether a reel was missing. It fails at everything it tries.",
        NEGATIVE,
    ),
)
