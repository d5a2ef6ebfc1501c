"""Reports for people: what `learn` found as an HTML page, without Spark or network."""
