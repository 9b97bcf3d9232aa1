"""Reads metrics from standard input with Prometheus' own strict parser of OpenMetrics, and prints the result as
JSON: families with type and unit, and the samples of each. No scraper is more lenient."""
import json
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families

families = {}
for family in text_string_to_metric_families(sys.stdin.read()):
    assert family.name not in families, f"{family.name} is there twice"
    seen = set()
    for sample in family.samples:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        assert key not in seen, f"{key} is there twice"
        seen.add(key)
    families[family.name] = {
        "type": family.type,
        "unit": family.unit,
        "help": family.documentation,
        "samples": [[s.name, s.labels, s.value] for s in family.samples],
    }
print(json.dumps(families))
