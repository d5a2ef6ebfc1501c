"""Reports of experiments: figures as PNG, and one HTML page that contains everything."""
