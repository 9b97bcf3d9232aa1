"""Pure arithmetic of comparisons: medians, paired differences, noise."""
import statistics


def paired(first, second):
    """Differences second - first of rounds that ran side by side."""
    return [b - a for a, b in zip(first, second)]


def spread(differences):
    """How far a difference lies from zero although nothing differs: the largest absolute one of a null control."""
    return max((abs(d) for d in differences), default=0.0)


def judge(bare, bare_again, changed, budget):
    """The added cost with its null control: bare against bare gives the noise, which the budget is widened by."""
    added = statistics.median(paired(bare, changed))
    noise = spread(paired(bare, bare_again))
    return {"added_ns": round(added, 2), "noise_ns": round(noise, 2), "budget_ns": budget,
            "bare_ns": round(statistics.median(bare), 2), "within": added <= budget + noise}
