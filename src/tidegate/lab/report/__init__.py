"""What an experiment leaves behind: figures as PNG, and one HTML page that needs nothing else."""
