"""Pure arithmetic of comparisons: medians, paired differences, noise."""
import statistics


def paired(first, second):
    """Differences second - first of rounds that ran at the same time."""
    return [b - a for a, b in zip(first, second)]


def spread(differences):
    """Noise: the largest absolute difference of a null control, where nothing differs."""
    return max((abs(d) for d in differences), default=0.0)


def judge(bare, bare_again, changed, budget):
    """The added cost with its null control: bare against bare gives the noise, which the budget is widened by."""
    added = statistics.median(paired(bare, changed))
    noise = spread(paired(bare, bare_again))
    return {"added_ns": round(added, 2), "noise_ns": round(noise, 2), "budget_ns": budget,
            "bare_ns": round(statistics.median(bare), 2), "within": added <= budget + noise}
