"""Live meters of the running system, and its history: schemas, the recorder and its lake."""
