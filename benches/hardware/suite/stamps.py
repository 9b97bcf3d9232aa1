"""Computes shares of the device from the kernels' own records. Arithmetic only; the record format: programs/kernels.py.

A record is (begin, end, own) in nanoseconds of the device's timer; own excludes the time of other contexts in between.
"""
import os
from array import array

RECORD_WORDS = 4


def read(path):
    """The records of a file, in the order of their begins."""
    words = array("Q")
    with open(path, "rb") as data:
        words.fromfile(data, os.path.getsize(path) // words.itemsize)
    return sorted((words[at], words[at + 1], words[at + 2]) for at in range(0, len(words) - RECORD_WORDS + 1, RECORD_WORDS))


def union_ns(records, begin, end):
    """Nanoseconds of [begin, end) in which at least one of the records ran."""
    total, until = 0, begin
    for first, last, _ in sorted(records):
        first, last = max(first, until), min(last, end)
        if last > first:
            total += last - first
            until = last
    return total


def own_ns(records, begin, end):
    """Own time of the records inside [begin, end); a record that reaches beyond counts in proportion to its overlap."""
    total = 0.0
    for first, last, own in records:
        inside = min(last, end) - max(first, begin)
        if inside > 0 and last > first:
            total += own * inside / (last - first)
    return total


def middle(values, part):
    """The value below which the fraction `part` of all values lies; `values` is sorted."""
    return values[min(len(values) - 1, int(part * len(values)))] if values else None


def alone(records, skip):
    """Share of one process that has the device for itself, from the begin of one kernel to that of the last. These
    are whole cycles of kernel and pause, so that a kernel's length causes no error. None if too few kernels are
    left."""
    kept = records[skip:]
    if len(kept) < 2 or kept[-1][0] <= kept[0][0]:
        return None
    begin, end = kept[0][0], kept[-1][0]
    busy = union_ns(kept, begin, end)
    ends, gaps = kept[0][1], []
    for first, last, _ in kept[1:]:
        gaps.append(max(0, first - ends))
        ends = max(ends, last)
    gaps.sort()
    return {"share": busy / (end - begin), "busy_ns": busy, "window_ns": end - begin, "kernels": len(kept) - 1,
            "pace_ns": round((end - begin) / (len(kept) - 1), 1),
            "gap_ns": {"median": middle(gaps, 0.5), "p99": middle(gaps, 0.99), "max": gaps[-1]}}


def together(all_records, settle_ns):
    """Shares of processes that run at the same time, over the time in which all of them ran, by their own time. None
    if there is no such time."""
    if not all(all_records):
        return None
    begin = max(records[0][0] for records in all_records) + settle_ns
    end = min(records[-1][0] for records in all_records)
    if end <= begin:
        return None
    busy = [own_ns(records, begin, end) for records in all_records]
    return {"shares": [ns / (end - begin) for ns in busy], "share": sum(busy) / (end - begin), "window_ns": end - begin,
            "busy_ns": round(sum(busy))}
