"""Overlapping groups the slow way: carry, forwards in time, the set of all releases that every model contains."""


def era_of(eras, interval):
    """The groups of an interval; eras are (since, groups) pairs."""
    return [groups for since, groups in eras if since <= interval][-1]


def releases_seen(workers, eras, period, epochs, *, plus):
    """seen[i] = the releases (group, epoch) that reach worker i while the models of the epochs 1 .. `epochs` are shown."""
    count = len(eras[0][1])
    inside = [set() for _ in range(count)]  # which releases the current model of each group contains
    seen = [set() for _ in range(workers)]
    for epoch in range(1, epochs):
        groups = era_of(eras, (epoch - 1) // period + 1)
        first, last = (epoch - 1) % period == 0, epoch % period == 0
        if first:
            merged = []
            for m in range(count):
                merged.append(set(inside[m]))
                for worker in groups[m]:
                    for other in range(count):
                        if worker in groups[other]:
                            merged[m] |= inside[other]
            for m in range(count):
                for worker in groups[m]:
                    seen[worker] |= merged[m] if plus else inside[m]
            starts = merged
        if plus and not last:
            continue
        after = []
        for m in range(count):
            made = {(m, epoch)} if groups[m] else set()
            carried = starts[m] if plus or first else inside[m]
            after.append(inside[m] | carried | made if groups[m] else inside[m])
        inside = after
        for m in range(count):
            for worker in groups[m]:
                seen[worker] |= inside[m]
    return seen


def counts(workers, eras, period, epochs, *, plus):
    """counts[n][i] = {group: releases of it with n among their subjects that reach i}."""
    seen = releases_seen(workers, eras, period, epochs, plus=plus)
    table = [[{} for _ in range(workers)] for _ in range(workers)]
    for observer in range(workers):
        for group, epoch in seen[observer]:
            members = era_of(eras, (epoch - 1) // period + 1)[group]
            for subject in members:
                cell = table[subject][observer]
                cell[group] = cell.get(group, 0) + 1
    return table


def distance(groups, one, other):
    """Hops between two groups that share workers; None where there is no way."""
    reached, steps = {one}, 0
    while other not in reached:
        wider = reached | {m for m, g in enumerate(groups) if any(set(g) & set(groups[r]) for r in reached)}
        if wider == reached:
            return None
        reached, steps = wider, steps + 1
    return steps


def closed_form(groups, period, epochs, subject, observer, *, plus):
    """The corrected count of Theorem 1: S max(0, ceil((t-1)/S) - rho), without S for DP-OGL+; all epochs where shared."""
    mine = [m for m, g in enumerate(groups) if subject in g]
    theirs = [m for m, g in enumerate(groups) if observer in g]
    total, begun = 0, -(-(epochs - 1) // period)
    for m in mine:
        if m in theirs:
            total += (epochs - 1) // period if plus else epochs - 1
            continue
        ways = [d for other in theirs if (d := distance(groups, m, other)) is not None]
        if ways:
            total += (1 if plus else period) * max(0, begun - min(ways))
    return total
