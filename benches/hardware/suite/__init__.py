"""The checks on hardware: `runner` (processes, time, verdicts), one file for each subject, `report` (what is written)."""
