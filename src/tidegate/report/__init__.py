"""Pages for people: what was learned, as one HTML file or a PDF; no Spark and no network."""
