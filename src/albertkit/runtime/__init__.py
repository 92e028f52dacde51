"""Running a model without torch."""
