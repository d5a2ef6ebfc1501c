"""All commands, one module each group. Heavy imports wait until a command needs them.

Who runs one command imports that one alone (`command_groups`); all are for help and for what is
misspelt.
"""

from __future__ import annotations

from tidegate.cli import (
    agreements,
    benching,
    configuration,
    console,
    demo,
    door,
    experiments,
    explaining,
    holding,
    hosting,
    learning,
    looking,
    machines,
    messages,
    policies,
    queues,
    reporting,
    scaling,
    services,
    serving,
    simulating,
    sla,
    steer,
    steering,
    top,
    topics,
    tuning,
    users,
    watching,
    working,
)
from tidegate.cli.command_line import new_app, run

app = new_app()
for group in (
    *(serving, machines, working, configuration, users, demo),
    *(console, looking, queues, messages, policies, topics, steering),
    *(scaling, explaining, tuning, steer),
    *(hosting, door, services, holding, sla, top),
    *(agreements, learning, watching, reporting, simulating, benching, experiments),
):
    group.register(app)


def main() -> None:
    """Run whichever it is."""
    run(app)
