"""The application with all command groups; each group is one module.

This module is imported for help and for unknown commands. A known command imports only its own
module (`command_groups`). Command modules delay heavy imports until a command runs.
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
    """Run the command from the command line."""
    run(app)
