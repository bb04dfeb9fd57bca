"""Text to words, one character at a time."""

STOP = set(
    "i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers "
    "herself it its itself they them their theirs themselves what which who whom this that these those am is are "
    "was were be been being have has had having do does did doing a an the and but if or because as until while "
    "of at by for with about against between into through during before after above below to from up down in out "
    "on off over under again further then once here there when where why how all any both each few more most "
    "other some such no nor not only own same so than too very s t can will just don should now d ll m o re ve y "
    "ain aren couldn didn doesn hadn hasn haven isn ma mightn mustn needn shan shouldn wasn weren won wouldn".split()
)
LOWER = "abcdefghijklmnopqrstuvwxyz"
LETTERS = LOWER + LOWER.upper()


def without_tags(text, instead):
    out, i = "", 0
    while i < len(text):
        end = text.find(">", i + 1)
        if text[i] == "<" and end > i + 1:
            out, i = out + instead, end + 1
        else:
            out, i = out + text[i], i + 1
    return out


def with_not(text):
    out, i = "", 0
    while i < len(text):
        three, after = text[i : i + 3], text[i + 3 : i + 4]
        found = len(three) == 3 and three[0] in "nN" and three[1] in "'`’" and three[2] in "tT"
        if found and not (after.isalnum() or after == "_"):
            out, i = out + " not ", i + 3
        else:
            out, i = out + text[i], i + 1
    return out


def recipe(text, scope=3):
    """The best recipe: negation-joined words without stop words."""
    return negated(with_not(without_tags(text, " . ")), scope)


def negated(text, scope):
    words, word, left = [], "", 0
    for character in text + ".":
        if character in LETTERS:
            word += LOWER[LETTERS.index(character) % 26]
            continue
        if word in ("no", "nor", "not", "never", "cannot"):
            left = scope
        elif len(word) > 1 and word not in STOP:
            words.append("not_" + word if left > 0 else word)
            left -= 1
        word = ""
        if character in '.,;:!?()"':
            left = 0
    return words


def recipe_ngrams(text, scope, n):
    """The words of `recipe` clause by clause, each followed by the runs of at most n words that end with it."""
    marked, clauses, clause = with_not(without_tags(text, " . ")), [], ""
    for character in marked + ".":
        if character in '.,;:!?()"':
            clauses.append(clause)
            clause = ""
        else:
            clause += character
    out = []
    for clause in clauses:
        words = negated(clause, scope)
        for last in range(len(words)):
            for size in range(1, min(n, last + 1) + 1):
                out.append(" ".join(words[last + 1 - size : last + 1]))
    return out


def published(text):
    """The published pipeline without its lemmatiser; `text` must have no links."""
    plain = ""
    for character in without_tags(text, ""):
        if character in LETTERS or character.isspace():
            plain += character
        elif character == "_" or not character.isalnum():
            plain += " "
    plain = "".join(character for character in plain if character.isascii())
    runs = ""
    for character in plain:
        if not (character in LETTERS and runs.endswith(2 * character)):
            runs += character
    return [word for word in runs.split() if word not in STOP]
