"""Pages for people: what was learned, as one HTML file or a PDF, drawn without Spark or a network."""
