"""The same laws and loops against a plant in virtual time."""
