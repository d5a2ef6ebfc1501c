"""Agreements: what a service promises, and whether it is kept. Pure.

    document     what people write            contradictions   what they cannot mean
    windows      samples, judged              violations       what begins and ends
    history      burn rates and the budget    learned_warnings where a warning belongs
    ledger       all of these, as samples come in
    openslo_*    OpenSLO there and back       tapas            XML, in

`evaluation` has the formulas. The plan of what an agreement takes is in `control`, since it needs
laws; the services that act on agreements live elsewhere.
"""
