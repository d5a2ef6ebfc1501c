"""Agreements: what a service promises, and whether it keeps the promises.

The package is pure: it does no I/O except reading agreement files, and it uses no clock.

    document     the TOML document            contradictions    promises that exclude each other
    windows      samples to verdicts          violations        begin and end of violations
    history      burn rates, error budget     learned_warnings  warning points from measurements
    ledger       all of these, incrementally
    openslo_*    OpenSLO import and export    tapas             TAPAS XML import

`evaluation` has the formulas. Capacity planning for an agreement is in `control`, because it needs
control laws. The control loops and doors that act on agreements are in `control` and `cli`.
"""
