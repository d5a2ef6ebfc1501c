"""Live meters of running processes, and the recorded history: schemas, recorder and lake."""
