"""`tidegate demo`: the whole story in two minutes, on parts that are all real.

story      what happens, in which order, and what is promised
workshop   the user code of its workers, which write down what they were given
customers  the process that puts, and writes down what was confirmed
stage      store, node, fleet, workers and customers, in one temporary folder
load       what customers put, and what the archive is to do
moments    how it all is, again and again
spectator  sees every moment, tells what has changed, lets chapters wait for it
account    how the agreements stand, by the leader's word
director   plays the story: turns the load, kills a machine, slows a worker, waits for what follows
outcome    what came of it
view       the narrated terminal view, and lines for pipes
evidence   the recorded histories, and the checker's judgement of them
lessons    Spark learns from it, and a page shows what
summary    what was promised, and what was kept
show       the command: play, judge, learn, tell, clean up
"""

from tidegate.cli.demo.show import register

__all__ = ["register"]
