"""Spells and the survival curve of Kaplan and Meier, by loops."""

import math


def spells(ts, row):
    """(duration, censored, least, most, start, state) of each stretch of equal states that are not negative."""
    found, first = [], 0
    last = max((k for k in range(len(ts)) if row[k] >= 0), default=-1)
    for k in range(last + 1):
        if k < last and row[k + 1] == row[first]:
            continue
        before = ts[first - 1] if first > 0 else ts[0]
        if k == last:
            found.append((ts[k] - ts[first], True, ts[k] - ts[first], math.inf, ts[first], row[first]))
        else:
            end = ts[k + 1]
            found.append((end - ts[first], False, ts[k] - ts[first], end - before, ts[first], row[first]))
        first = k + 1
    return found


def survival(durations, censored, t):
    """S(t) and Greenwood's standard error."""
    share, variance = 1.0, 0.0
    for end in sorted({d for d, c in zip(durations, censored, strict=True) if not c and d <= t}):
        at_risk = sum(d >= end for d in durations)
        ended = sum(d == end and not c for d, c in zip(durations, censored, strict=True))
        share *= 1 - ended / at_risk
        if at_risk > ended:
            variance += ended / (at_risk * (at_risk - ended))
    return share, share * math.sqrt(variance)


def restricted_mean(durations, censored, horizon):
    """The area below S up to the horizon, and its standard error by Greenwood's formula."""
    ends = sorted({d for d, c in zip(durations, censored, strict=True) if not c and d < horizon})
    edges = [0.0, *ends, horizon]
    areas = [survival(durations, censored, a)[0] * (b - a) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    variance = 0.0
    for k, end in enumerate(ends):
        at_risk = sum(d >= end for d in durations)
        ended = sum(d == end and not c for d, c in zip(durations, censored, strict=True))
        if at_risk > ended:
            variance += math.fsum(areas[k + 1 :]) ** 2 * ended / (at_risk * (at_risk - ended))
    return math.fsum(areas), math.sqrt(variance)
