"""Live meters: rates, histograms and phases of the running system."""
