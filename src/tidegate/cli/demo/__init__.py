"""`tidegate demo`: a store, a node, producers and workers, watched for twenty seconds.

script   who does what, and what happens when
recent   what the live numbers were in the last second
view     the live terminal view, and a plain line a second for pipes
summary  what it came to, counted
show     the command: start, watch, drain, count, clean up
"""

from tidegate.cli.demo.show import register

__all__ = ["register"]
