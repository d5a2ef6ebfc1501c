"""Reports for people: what `learn` found as an HTML page or PDF, without Spark or network."""
