"""`tidegate demo` in brief: the same story, whose chapters last no longer than what they wait for.

How long a chapter waits is a limit against hanging here, and the promised wait is longer than any
busy machine needs: only a wrong product breaks a promise.

    python brief_demo.py OPTIONS OF THE DEMO
"""

from __future__ import annotations

import dataclasses
import sys

from tidegate.demo import scenario

_SECONDS = 0.5
_HILL_S = 2.0
# So that nothing hangs: no busy machine needs as long.
_PATIENCE_S = 120.0
_SETTLE_S = 4.0
_OTHERWISE = {
    'inhibition = "3s"': 'inhibition = "1s"',
    'cooldown_period = "6s"': 'cooldown_period = "1s"',
    # More samples to learn from, in fewer files: Spark takes longer for a file than for its rows.
    'interval = "500ms"\nflush = "1s"': 'interval = "200ms"\nflush = "4s"',
    # Not the point: a busy machine may be late with its heartbeats.
    'lost = "1s"': 'lost = "3s"',
    'lease = "1s"': 'lease = "3s"',
}


def _changed(text: str, changes: dict[str, str]) -> str:
    for usual, otherwise in changes.items():
        assert usual in text, usual
        text = text.replace(usual, otherwise)
    return text


AGREEMENT = _changed(
    scenario.AGREEMENT, {'breach = "10s"': 'breach = "100s"', 'window = "5s"': 'window = "2s"'}
)


def brief(told: scenario.DemoScenario) -> scenario.DemoScenario:
    """Every chapter, as short as it can be."""
    return scenario.DemoScenario(
        **{
            name: dataclasses.replace(
                chapter,
                seconds=_HILL_S if name == "ramp" else _SECONDS,
                seconds_max=_PATIENCE_S,
            )
            for name, chapter in vars(told).items()
        }
    )


def shorten() -> None:
    """Change the story, then the patience of those who tell it."""
    usual = scenario.demo_scenario
    scenario.demo_scenario = lambda pace=1.0: brief(usual(pace))
    scenario.SETTLE_S = _SETTLE_S
    scenario.AGREEMENT = AGREEMENT
    scenario.SETTINGS = _changed(scenario.SETTINGS, _OTHERWISE)
    # They take what they need of the story when they are imported.
    from tidegate.demo import customers, runner

    runner._CURTAIN_S = runner._DRAIN_S = _PATIENCE_S
    runner._BLIND_S = customers._START_S = _PATIENCE_S


if __name__ == "__main__":
    shorten()
    from tidegate.cli import main

    sys.argv = ["tidegate", "demo", *sys.argv[1:]]
    main()
