"""The command `tidegate demo`: a scenario of two minutes on real processes.

story      the scenario: its steps, agreements and settings
workshop   the user code of the workers, which record what they receive
customers  the producer process, which records the confirmed puts
stage      store, node, fleet, workers and producers in a temporary folder
load       the rates of the producers and of the archive's workers
moments    a snapshot of the demo, and the changes between two snapshots
spectator  polls snapshots, prints changes, and waits for conditions
account    the leader's totals for the agreements
director   runs the scenario: sets the load, kills a machine, slows a worker
outcome    the result of the run
view       the terminal view, and plain lines for pipes
evidence   the recorded histories, and the checker's result
lessons    the models that Spark learns from the run, and the report page
summary    the promises, and whether each was kept
show       the command itself
"""

from tidegate.cli.demo.show import register

__all__ = ["register"]
