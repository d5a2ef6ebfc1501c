"""The experiments of the Telesto report: its client mix, its figures and its tables."""
