"""Coverage-guided fuzzing of everything that reads what others wrote: `make fuzz` (docs/threat-model.md)."""
